-- One latency of requests that ended ok, estimated from sampled requests. A percentile is the smallest value that the wanted share
-- of the weight does not exceed. Weights are rounded to thousandths.
SELECT
    sum(weight) AS n,
    sum(weight * value) / n AS mean,
    quantilesExactWeighted$levels(value, toUInt64(round(weight * 1000))) AS quantiles,
    max(value) AS largest
FROM
(
    SELECT weight, toFloat64(assumeNotNull($value)) AS value
    FROM requests
    WHERE $parts.ended_in_window AND $filter AND status = 'ok' AND $value IS NOT NULL
)
