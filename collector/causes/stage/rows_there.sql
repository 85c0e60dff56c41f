-- How many steps, and rows of requests with their phases, about, processes have in their windows.
SELECT process, sum(n) AS n
FROM
(
    SELECT $parts.process_key AS process, count() AS n
    FROM steps
    WHERE $parts.in_windows
    GROUP BY process
    UNION ALL
    SELECT $parts.process_key AS process, 8 * count() AS n
    FROM requests
    WHERE $parts.beside_requests
    GROUP BY process
)
GROUP BY process
