-- The model that most requests of engine processes asked for that ended in a time.
SELECT process, argMax(model, n) AS model
FROM (
    SELECT $parts.process_key AS process, model, count() AS n
    FROM requests
    WHERE end >= fromUnixTimestamp64Nano({low_ns:Int64}) AND end <= fromUnixTimestamp64Nano({high_ns:Int64})
      AND vantage = 'server' AND (service, instance) IN {names:Array(Tuple(String, String))}
    GROUP BY process, model
)
GROUP BY process
