-- The largest batch, queue and share of KV blocks of each engine process, by bucket, and the median of its steps that only decode.
-- no rows without: steps
SELECT
    $parts.process,
    intDiv(toUnixTimestamp64Nano(start) - {start_ns:Int64}, {step_ns:Int64}) AS bucket,
    max(running) AS most_running,
    max(waiting) AS most_waiting,
    max(if(kv_blocks_total = 0, NULL, kv_blocks_used / kv_blocks_total)) AS most_usage,
    countIf(prefill_tokens = 0 AND decode_tokens > 0) AS decode_steps,
    quantileExactIf(0.5)(duration_ns, prefill_tokens = 0 AND decode_tokens > 0) AS decode_p50_ns
FROM steps
WHERE $parts.started_in_window
  AND $process_filter
GROUP BY $parts.process, bucket
