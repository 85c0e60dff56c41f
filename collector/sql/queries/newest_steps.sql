-- The newest step of each engine process in the window.
SELECT
    service, instance,
    argMax(variant, start) AS variant_now,
    toUnixTimestamp64Nano(max(start)) AS seen_ns,
    argMax(kv_blocks_used, start) AS blocks_used,
    argMax(kv_blocks_total, start) AS blocks_total,
    argMax(running, start) AS running_now,
    argMax(waiting, start) AS waiting_now
FROM steps
WHERE $parts.started_in_window
  AND $process_filter
GROUP BY service, instance
ORDER BY service, instance
