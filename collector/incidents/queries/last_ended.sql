-- When the last request before a moment ended. The table lies in the order of `end`, so few rows are read.
SELECT toUnixTimestamp64Nano(end) AS last_ns
FROM requests
WHERE $parts.counts_at < fromUnixTimestamp64Nano({end_ns:Int64}) AND $filter
ORDER BY end DESC
LIMIT 1
