-- KV-cache evictions and preemptions of the window, per engine process.
SELECT
    service, instance,
    sumIf(blocks, kind = 'evict') AS evicted_blocks,
    countIf(kind = 'evict') AS evictions,
    countIf(reason = 'preemption') AS preemptions
FROM kv_events
WHERE $parts.started_in_window
  AND $process_filter
GROUP BY service, instance
