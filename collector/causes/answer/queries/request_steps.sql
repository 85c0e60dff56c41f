-- Steps of the request's engine process that overlap the request.
-- no rows without: steps
SELECT
    step, toUnixTimestamp64Nano(start) - {began_ns:Int64} AS offset_ns, duration_ns, prefill_tokens, decode_tokens, running,
    waiting, preempted, kv_blocks_used, kv_blocks_total, kv_blocks_evicted,
    waiting_for_batch, waiting_for_tokens, waiting_for_kv, waiting_for_priority, cached_tokens, drafted_tokens, retries, graph_rows, device_ns,
    compute_ns, memory_ns, count() OVER () AS steps_total
FROM steps
WHERE $parts.of_process_of_request
  AND start <= fromUnixTimestamp64Nano({ended_ns:Int64})
  AND start >= fromUnixTimestamp64Nano({began_ns:Int64}) - $parts.longest_event
  AND toUnixTimestamp64Nano(start) + duration_ns >= {began_ns:Int64}
ORDER BY start, step
LIMIT {limit:UInt32}
