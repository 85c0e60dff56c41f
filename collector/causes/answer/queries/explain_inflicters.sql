-- The requests whose prompts made others wait for the longest time, of those whose prompts were computed in some stretches of time.
-- no rows without: causes
SELECT request_key, toUnixTimestamp64Nano(end) AS end_ns, inflicted_us, weight
FROM causes FINAL
WHERE inflicted_us > 0 AND $filter AND $ran
ORDER BY inflicted_us DESC, end, request_key
LIMIT {limit:UInt32}
