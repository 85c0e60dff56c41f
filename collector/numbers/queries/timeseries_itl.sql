-- A token is in the bucket in which its request ended, as everything else about that request.
SELECT
    bucket_ns,
    count() AS n,
    quantilesExactInclusive(0.5, 0.9, 0.95, 0.99)(duration_us * 1000) AS quantiles,
    max(duration_us * 1000) AS largest
FROM (SELECT request_key, duration_us $parts.itl_tokens) AS token
INNER JOIN
(
    SELECT $parts.request_key AS request_key, $parts.bucket AS bucket_ns
    FROM requests
    WHERE $parts.ended_in_window AND $filter AND status = 'ok'
) AS request USING (request_key)
GROUP BY bucket_ns
ORDER BY bucket_ns
