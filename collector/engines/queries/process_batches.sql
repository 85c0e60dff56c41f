-- The largest batch, queue and share of KV blocks of each engine process, by bucket, and the median of its steps that only decode, by the
-- quarter of an octave of the sequences that they decode: (size, steps, median).
-- no rows without: steps
SELECT
    service, instance, process_tenant, bucket,
    max(running) AS most_running, max(waiting) AS most_waiting, max(usage) AS most_usage,
    groupArrayIf((size, n, p50_ns), size > 0) AS decoded
FROM
(
    SELECT
        $parts.process,
        intDiv(toUnixTimestamp64Nano(start) - {start_ns:Int64}, {step_ns:Int64}) AS bucket,
        if(prefill_tokens = 0 AND decode_tokens > 0, 1 + toUInt8(4 * log2(assumeNotNull(decode_tokens))), 0) AS size,
        max(running) AS running,
        max(waiting) AS waiting,
        max(if(kv_blocks_total = 0, NULL, kv_blocks_used / kv_blocks_total)) AS usage,
        count() AS n,
        quantileExact(0.5)(duration_ns) AS p50_ns
    FROM steps
    WHERE $parts.started_in_window
      AND $process_filter
    GROUP BY $parts.process, bucket, size
)
GROUP BY service, instance, process_tenant, bucket
