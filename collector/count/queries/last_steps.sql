-- When the given engine processes last began a step, in (`since_ns`, `end_ns`].
-- no rows without: steps
SELECT $parts.process, toUnixTimestamp64Nano(max(start)) AS last_ns
FROM steps
WHERE ($parts.process) IN {processes:Array(Tuple(String, String, String))}
  AND start > fromUnixTimestamp64Nano({since_ns:Int64}) AND start <= fromUnixTimestamp64Nano({end_ns:Int64})
GROUP BY $parts.process
