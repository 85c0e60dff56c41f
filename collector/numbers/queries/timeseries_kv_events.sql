-- KV-cache blocks evicted, and preemptions, by bucket.
-- no rows without: kv_events
SELECT
    intDiv(toUnixTimestamp64Nano(start), {step_ns:Int64}) * {step_ns:Int64} AS bucket_ns,
    if(countIf(kind = 'evict') = 0, 0, sumIf(blocks, kind = 'evict')) AS kv_evictions,
    countIf(reason = 'preemption') AS preemptions
FROM kv_events
WHERE $parts.started_in_window
  AND $process_filter
GROUP BY bucket_ns
ORDER BY bucket_ns
