-- When the first of the requests began that ended ok in the window; NULL without one.
SELECT toUnixTimestamp64Nano(minOrNull(start)) AS first_ns
FROM requests
WHERE $parts.ended_in_window AND $filter AND status = 'ok'
