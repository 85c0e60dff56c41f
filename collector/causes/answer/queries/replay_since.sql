-- The end of the newest request of processes that has `most` newer ones in the window; 0 where there are fewer.
SELECT max(end_ns) AS since_ns
FROM
(
    SELECT toUnixTimestamp64Nano(end) + 1 AS end_ns
    FROM requests
    WHERE $parts.ended_in_window AND (service, instance) IN {names:Array(Tuple(String, String))} AND vantage = 'server'
    ORDER BY end_ns DESC
    LIMIT 1 OFFSET {most:UInt32}
)
