-- How much the totals of each process grew, by bucket of time.
-- no rows without: samples
SELECT
    $parts.process, name,
    intDiv(toUnixTimestamp64Nano(CAST(time, 'DateTime64(9)')), {step_ns:Int64}) * {step_ns:Int64} AS bucket_ns,
    sum(if(since_zero, value, value - earlier)) AS growth
FROM ($parts.grown_samples)
GROUP BY $parts.process, name, bucket_ns
ORDER BY $parts.process, name, bucket_ns
