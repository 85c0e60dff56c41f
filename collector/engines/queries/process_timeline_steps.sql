-- The newest steps of one engine process that overlap a time.
-- no rows without: steps
SELECT
    step, toUnixTimestamp64Nano(start) AS start_ns, duration_ns, prefill_tokens, decode_tokens, running, waiting, kv_blocks_used, kv_blocks_total,
    count() OVER () AS steps_total
FROM steps
WHERE (service, instance, process_tenant) = ({service:String}, {instance:String}, {process_tenant:String})
  AND start < fromUnixTimestamp64Nano({end_ns:Int64})
  AND start >= fromUnixTimestamp64Nano({start_ns:Int64}) - $parts.longest_event
  AND toUnixTimestamp64Nano(start) + duration_ns >= {start_ns:Int64}
ORDER BY start DESC, step DESC
LIMIT {limit:UInt32}
