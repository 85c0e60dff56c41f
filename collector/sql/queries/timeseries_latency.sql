-- Percentiles of one latency of requests that ended ok, by bucket.
SELECT
    $parts.bucket AS bucket_ns,
    $n AS n,
    $quantiles AS quantiles,
    max(assumeNotNull($value)) AS largest,
    countIf(is_sampled) AS sampled
FROM requests
WHERE $parts.ended_in_window AND $filter AND status = 'ok' AND $value IS NOT NULL
GROUP BY bucket_ns
HAVING n > 0
ORDER BY bucket_ns
