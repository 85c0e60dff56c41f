-- KV-cache evictions and preemptions of the window, per engine process. Blocks are NULL when no eviction says its number.
-- no rows without: kv_events
SELECT
    $parts.process,
    countIf(kind = 'evict') AS evictions,
    if(evictions = 0, 0, sumIf(blocks, kind = 'evict')) AS evicted_blocks,
    countIf(reason = 'preemption') AS preemptions,
    argMax(variant, start) AS variant_now,
    toUnixTimestamp64Nano(max(start)) AS seen_ns
FROM kv_events
WHERE $parts.started_in_window
  AND $process_filter
GROUP BY $parts.process
