-- The end of the last step of engine processes, of those that have a step since a time.
SELECT $parts.process_key AS process, max(toUnixTimestamp64Nano(start) + toInt64(duration_ns)) AS end_ns
FROM steps
WHERE (service, instance) IN {names:Array(Tuple(String, String))} AND start >= fromUnixTimestamp64Nano({since_ns:Int64})
GROUP BY process
