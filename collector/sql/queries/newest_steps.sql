-- The newest step of each engine process in the window.
SELECT
    service, instance,
    argMax(variant, start) AS variant_now,
    toUnixTimestamp64Nano(max(start)) AS seen_ns,
    argMax((kv_blocks_used, kv_blocks_total, running, waiting), start) AS newest,   -- of a bare column it would skip NULL
    newest.1 AS blocks_used,
    newest.2 AS blocks_total,
    newest.3 AS running_now,
    newest.4 AS waiting_now
FROM steps
WHERE $parts.started_in_window
  AND $process_filter
GROUP BY service, instance
ORDER BY service, instance
