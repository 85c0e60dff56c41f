-- When the given engine processes last began a step, in (`since_ns`, `end_ns`].
SELECT service, instance, toUnixTimestamp64Nano(max(start)) AS last_ns
FROM steps
WHERE (service, instance) IN {processes:Array(Tuple(String, String))}
  AND start > fromUnixTimestamp64Nano({since_ns:Int64}) AND start <= fromUnixTimestamp64Nano({end_ns:Int64})
GROUP BY service, instance
