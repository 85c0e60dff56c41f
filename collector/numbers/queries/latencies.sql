-- Exact, of requests that ended ok, for each value of a column. A NULL (no token, fewer than two tokens, the engine does not report
-- it) is not counted.
SELECT
    $column AS value,
    $parts.latency_columns
FROM requests
WHERE $parts.ended_in_window AND $filter AND status = 'ok'
GROUP BY value
