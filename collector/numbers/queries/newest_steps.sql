-- The newest step of each engine process in the window, of those that tell a number of the engine, if any does. Where vLLM's API servers
-- share an engine, each records its part of a step, and one of them has the engine's numbers.
-- no rows without: steps
SELECT
    $parts.process,
    argMax(variant, start) AS variant_now,
    max((coalesce(running, waiting, kv_blocks_used, kv_blocks_total) IS NOT NULL, start)) AS newest,
    toUnixTimestamp64Nano(newest.2) AS seen_ns,
    argMax((kv_blocks_used, kv_blocks_total, running, waiting),                              -- of a bare column it would skip NULL
           (coalesce(running, waiting, kv_blocks_used, kv_blocks_total) IS NOT NULL, start)) AS told,
    told.1 AS blocks_used,
    told.2 AS blocks_total,
    told.3 AS running_now,
    told.4 AS waiting_now
FROM steps
WHERE $parts.started_in_window
  AND $process_filter
GROUP BY $parts.process
ORDER BY $parts.process
