-- Exact, per token after the first, of requests that ended ok.
SELECT
    count() AS itl_count,
    avg(toUInt64(duration_us) * 1000) AS itl_mean,
    quantilesExactInclusive(0.5, 0.9, 0.95, 0.99, 0.999)(duration_us * 1000) AS itl_quantiles,
    max(duration_us * 1000) AS itl_max
$parts.itl_tokens
