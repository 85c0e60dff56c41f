-- The variance w(w - 1) that the requests of estimated_latency.sql bring, in all and up to each of the given values.
SELECT
    sum(weight * (weight - 1)) AS total,
    sumForEach(arrayMap(limit -> if(value <= limit, weight * (weight - 1), 0.), {limits:Array(Float64)})) AS below
FROM
(
    SELECT weight, toFloat64(assumeNotNull($value)) AS value
    FROM requests
    WHERE $parts.ended_in_window AND $filter AND status = 'ok' AND $value IS NOT NULL
)
