-- The requests whose prompts made others wait for the longest time.
-- no rows without: causes
SELECT request_key, toUnixTimestamp64Nano(end) AS end_ns, inflicted_us, weight
FROM causes FINAL
WHERE $parts.ended_in_window AND $filter AND inflicted_us > 0
ORDER BY inflicted_us DESC, end, request_key
LIMIT {limit:UInt32}
