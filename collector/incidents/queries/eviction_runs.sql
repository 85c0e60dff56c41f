-- Runs of preemptions (a running request loses its KV-cache blocks), per engine process. A run ends when `quiet_ns` pass without
-- a preemption, and is found when it has one in the window. Preemptions are read from `since_ns` on. `victims` are the run's requests: `ended`
-- of them have ended in the window and match the filter, `not_ended` are the others.
-- no rows without: kv_events
SELECT
    $parts.process,
    toUnixTimestamp64Nano(min(start)) AS began_ns,
    toUnixTimestamp64Nano(max(start)) AS last_ns,
    count() AS evictions,
    countIf(kind = 'offload') AS offloads,
    sum(blocks) AS blocks_lost,
    uniqExact(trace_id, span_id) AS victims,
    uniqExactIf((trace_id, span_id), has_ended) AS ended,
    groupUniqArrayIf(lower(concat(hex(trace_id), hex(span_id))), NOT has_ended) AS not_ended
FROM
(
    SELECT *, sum(opens) OVER (PARTITION BY $parts.process ORDER BY start, trace_id, span_id) AS run
    FROM
    (
        SELECT
            start, $parts.process, kind, blocks, trace_id, toFixedString(request_span_id, 8) AS span_id,
            (trace_id, span_id, $parts.process) IN
            (
                SELECT trace_id, span_id, $parts.process
                FROM requests
                WHERE $parts.ended_in_window AND $filter AND (trace_id, span_id) IN
                (
                    SELECT trace_id, toFixedString(request_span_id, 8)
                    FROM kv_events
                    WHERE $parts.started_since AND reason = 'preemption'
                )
            ) AS has_ended,
            toUnixTimestamp64Nano(start) - toUnixTimestamp64Nano(lagInFrame(start)
                OVER (PARTITION BY $parts.process ORDER BY start, trace_id, span_id
                      ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)) > {quiet_ns:Int64} AS opens
        FROM kv_events
        WHERE $parts.started_since
          AND reason = 'preemption' AND $process_filter
    )
)
GROUP BY $parts.process, run
HAVING last_ns >= {start_ns:Int64}
ORDER BY last_ns DESC, $parts.process
LIMIT {limit:UInt32}
