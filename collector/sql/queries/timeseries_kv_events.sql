SELECT
    intDiv(toUnixTimestamp64Nano(start), {step_ns:Int64}) * {step_ns:Int64} AS bucket_ns,
    sumIf(blocks, kind = 'evict') AS kv_evictions,
    countIf(reason = 'preemption') AS preemptions
FROM kv_events
WHERE start >= fromUnixTimestamp64Nano({start_ns:Int64}) AND start < fromUnixTimestamp64Nano({end_ns:Int64})
  AND $of_engines
GROUP BY bucket_ns
ORDER BY bucket_ns
