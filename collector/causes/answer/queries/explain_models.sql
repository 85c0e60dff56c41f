-- The newest law of the step times of each process of the window, which judged its later steps.
SELECT
    $parts.process, argMax((start_ns, end_ns, n, r2, sigma), (at, version)) AS newest
FROM step_models
WHERE at >= toDateTime(fromUnixTimestamp64Nano({since_ns:Int64})) AND at < toDateTime(fromUnixTimestamp64Nano({end_ns:Int64})) AND $filter
GROUP BY $parts.process
ORDER BY $parts.process
