-- What itl.sql tells, for each value of a column.
SELECT value, duration_us, count() AS n
FROM (SELECT request_key, duration_us $parts.itl_tokens) AS token
INNER JOIN
(
    SELECT $parts.request_key AS request_key, $column AS value
    FROM requests
    WHERE $parts.ended_in_window AND $filter AND status = 'ok'
) AS request USING (request_key)
GROUP BY value, duration_us
ORDER BY value, duration_us
