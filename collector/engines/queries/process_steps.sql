-- The steps of each engine process in the window: how many, how long they took, and when the last one began.
-- no rows without: steps
SELECT
    $parts.process,
    count() AS n,
    quantilesExactInclusive(0.5, 0.99)(duration_ns) AS quantiles,
    toUnixTimestamp64Nano(max(start)) AS last_ns
FROM steps
WHERE $parts.started_in_window
  AND $process_filter
GROUP BY $parts.process
