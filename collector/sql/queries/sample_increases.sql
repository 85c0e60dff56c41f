-- How much the totals of each process grew, by bucket of time.
SELECT
    service, instance, name,
    intDiv(toUnixTimestamp64Nano(CAST(time, 'DateTime64(9)')), {step_ns:Int64}) * {step_ns:Int64} AS bucket_ns,
    sum(if(since_zero, value, value - earlier)) AS growth
FROM ($parts.grown_samples)
GROUP BY service, instance, name, bucket_ns
ORDER BY service, instance, name, bucket_ns
