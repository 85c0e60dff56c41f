-- When the first of the requests began that ended in the window, and the end of the last one; NULL without any.
SELECT toUnixTimestamp64Nano(minOrNull(start)) AS first_ns, toUnixTimestamp64Nano(maxOrNull($parts.counts_at)) AS last_ns
FROM requests
WHERE $parts.ended_in_window AND $filter
