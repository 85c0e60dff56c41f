-- Copies of KV blocks between device and host in the windows of their processes, as an array of numbers.
SELECT $parts.process_key AS process, toUnixTimestamp64Nano(start) AS start_ns, toInt64(duration_ns)
FROM kv_events
WHERE $parts.in_windows AND kind IN ('offload', 'restore')
ORDER BY process, start_ns
LIMIT {limit:UInt64}
