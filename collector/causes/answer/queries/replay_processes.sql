-- The engine processes of requests, those with most first, with their engine, variant and the model that most asked for. The inner query filters
-- by these columns, whose names the outer one gives to its own.
SELECT
    $parts.process, $parts.process_key AS process, argMax(engine, end) AS engine, argMax(variant, end) AS variant,
    topK(1)(model)[1] AS model, count() AS n
FROM
(
    SELECT $parts.process, engine, variant, model, end
    FROM requests
    WHERE $parts.ended_in_window AND $filter AND vantage = 'server'
)
GROUP BY $parts.process, process
ORDER BY n DESC, $parts.process
LIMIT {limit:UInt32}
