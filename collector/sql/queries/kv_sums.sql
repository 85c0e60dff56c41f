SELECT
    service, instance,
    sumIf(blocks, kind = 'evict') AS evicted_blocks,
    countIf(kind = 'evict') AS evictions,
    countIf(reason = 'preemption') AS preemptions
FROM kv_events
WHERE start >= fromUnixTimestamp64Nano({start_ns:Int64}) AND start < fromUnixTimestamp64Nano({end_ns:Int64})
  AND $of_engines
GROUP BY service, instance
