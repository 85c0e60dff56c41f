-- The announcements of each engine process with its names, and the ends that took their place. It gave a sign of life in the window if `listed`.
-- no rows without: open_requests
SELECT
    $parts.process, engine, vantage,
    argMax(variant, seen) AS variant_now, $parts.names_of_processes,
    toUnixTimestamp64Nano(min(start)) AS first_ns, toUnixTimestamp64Nano(max(seen)) AS last_ns, count() AS in_flight,
    NOT ended AND seen < fromUnixTimestamp64Nano({end_ns:Int64}) AS listed
FROM open_requests
WHERE $parts.ran_in_window AND $filter
GROUP BY $parts.process, engine, vantage, listed
