-- When the first bad request of the window ended; the epoch (0) when there is none.
SELECT toUnixTimestamp64Nano(min(end)) AS first_ns
FROM requests
WHERE $parts.ended_in_window AND $filter AND NOT $not_bad
