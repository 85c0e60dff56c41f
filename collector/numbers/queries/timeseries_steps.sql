-- The highest KV-cache use of any engine process, and the sum over processes of each one's largest batch and queue, by bucket.
-- no rows without: steps
SELECT
    bucket_ns,
    max(usage) AS kv_usage,
    sum(most_running) AS running,
    sum(most_waiting) AS waiting
FROM
(
    SELECT
        intDiv(toUnixTimestamp64Nano(start), {step_ns:Int64}) * {step_ns:Int64} AS bucket_ns,
        max(if(kv_blocks_total = 0, NULL, kv_blocks_used / kv_blocks_total)) AS usage,    -- a start may change the total
        max(running) AS most_running,
        max(waiting) AS most_waiting
    FROM steps
    WHERE $parts.started_in_window
      AND $process_filter
    GROUP BY bucket_ns, $parts.process
)
GROUP BY bucket_ns
ORDER BY bucket_ns
