SELECT toUnixTimestamp64Nano(min(end)) AS first_ns
FROM requests
WHERE $window AND $filter AND status != 'cancelled' AND NOT $good
