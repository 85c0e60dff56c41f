-- Exact percentiles of one latency of requests that ended ok, by bucket.
SELECT
    $parts.bucket AS bucket_ns,
    count() AS n,
    quantilesExactInclusive(0.5, 0.9, 0.95, 0.99)(assumeNotNull($value)) AS quantiles,
    max(assumeNotNull($value)) AS largest
FROM requests
WHERE $parts.ended_in_window AND $filter AND status = 'ok' AND $value IS NOT NULL
GROUP BY bucket_ns
ORDER BY bucket_ns
