-- The highest KV-cache use of any sampled process, and the sum over processes of each one's largest batch and queue, by bucket.
SELECT
    bucket_ns,
    max(most_kv_usage) AS kv_usage,
    sum(most_running) AS running,
    sum(most_waiting) AS waiting
FROM
(
    SELECT
        intDiv(toUnixTimestamp64Nano(CAST(time, 'DateTime64(9)')), {step_ns:Int64}) * {step_ns:Int64} AS bucket_ns,
        maxOrNullIf(largest, name = 'kv_usage') AS most_kv_usage,
        maxOrNullIf(total, name = 'running') AS most_running,
        maxOrNullIf(total, name = 'waiting') AS most_waiting
    FROM
    (
        SELECT time, service, instance, scraper, name, sum(value) AS total, max(value) AS largest
        FROM samples
        WHERE $parts.sampled AND name IN ('kv_usage', 'running', 'waiting')
        GROUP BY time, service, instance, scraper, name
    )
    GROUP BY bucket_ns, service, instance
)
GROUP BY bucket_ns
ORDER BY bucket_ns
