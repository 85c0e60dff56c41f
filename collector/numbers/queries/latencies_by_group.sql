-- What latencies.sql tells, for each value of a column.
SELECT
    $column AS value,
    $parts.latency_columns
FROM requests
WHERE $parts.ended_in_window AND $filter AND status = 'ok'
GROUP BY value
