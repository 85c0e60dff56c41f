-- Ended requests by what judges them, with the error of those that failed.
SELECT toUInt64($cell) AS cell, status = 'error' AS is_failed, if(is_failed, error_type, '') AS error, engine, sum(weight) AS n
FROM requests
WHERE $parts.ended_in_window AND $filter
GROUP BY cell, is_failed, error, engine
ORDER BY n DESC, cell, is_failed, error, engine
LIMIT 10000
