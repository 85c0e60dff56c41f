-- How much the histograms of each service grew: observations by bucket, and their sum. Histograms with other bounds stay apart.
-- no rows without: samples
SELECT
    process_tenant, service, engine, name, bounds,
    sumForEach(if(since_zero, CAST(buckets, 'Array(Int64)'),
        arrayMap((now, before) -> greatest(toInt64(now) - toInt64(before), 0), buckets, earlier_buckets))) AS observations,
    sum(if(since_zero, sum, sum - earlier_sum)) AS total
FROM ($parts.grown_samples)
WHERE notEmpty(buckets)
GROUP BY process_tenant, service, engine, name, bounds
ORDER BY process_tenant, service, engine, name, bounds
