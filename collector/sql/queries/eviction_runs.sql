-- Runs of preemptions (a running request loses its KV-cache blocks), per engine process. A run ends when `quiet_ns` pass without
-- a preemption.
SELECT
    service, instance,
    toUnixTimestamp64Nano(min(start)) AS began_ns,
    toUnixTimestamp64Nano(max(start)) AS last_ns,
    count() AS evictions,
    sum(blocks) AS blocks_lost,
    uniqExact(trace_id, request_span_id) AS victims
FROM
(
    SELECT *, sum(opens) OVER (PARTITION BY service, instance ORDER BY start, trace_id, request_span_id) AS run
    FROM
    (
        SELECT
            *,
            toUnixTimestamp64Nano(start) - toUnixTimestamp64Nano(lagInFrame(start)
                OVER (PARTITION BY service, instance ORDER BY start, trace_id, request_span_id
                      ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)) > {quiet_ns:Int64} AS opens
        FROM kv_events
        WHERE $parts.started_in_window
          AND reason = 'preemption' AND $process_filter
    )
)
GROUP BY service, instance, run
ORDER BY began_ns DESC
LIMIT {limit:UInt32}
