-- Cold starts that WAL segments brought, per engine process, with the latest one's duration and end.
SELECT
    $parts.process,
    count() AS n,
    countIf(status = 'error') AS failed,
    argMax(duration_ns, start) AS duration_ns,
    toUnixTimestamp64Nano(max(start)) + argMax(cold_starts.duration_ns, start) AS ended_ns
FROM cold_starts
WHERE phase = '' AND segment IN {segments:Array(String)} AND start >= least(fromUnixTimestamp64Nano({since_ns:Int64}), now64(9) - INTERVAL 1 DAY)
GROUP BY $parts.process
