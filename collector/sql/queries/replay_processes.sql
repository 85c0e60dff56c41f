-- The engine processes of requests, those with most first, with their engine and variant.
SELECT
    $parts.process, $parts.process_key AS process, argMax(engine, end) AS engine, argMax(variant, end) AS variant, count() AS n
FROM requests
WHERE $parts.ended_in_window AND $filter AND vantage = 'server'
GROUP BY $parts.process, process
ORDER BY n DESC, $parts.process
LIMIT {limit:UInt32}
