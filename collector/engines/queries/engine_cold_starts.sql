-- The cold starts of each engine process with its names.
-- no rows without: cold_starts
SELECT
    $parts.process, engine, argMax(variant, start + toIntervalNanosecond(duration_ns)) AS variant_now, $parts.names_of_processes,
    toUnixTimestamp64Nano(min(start)) AS first_ns,
    toUnixTimestamp64Nano(max(start + toIntervalNanosecond(duration_ns))) AS last_ns, count() AS cold_start
FROM cold_starts
WHERE $parts.started_in_window AND $process_filter
GROUP BY $parts.process, engine
