-- What the rows of each engine process tell in the window: the requests that say a thing, of those that ended ok. `some` are a few
-- of those that have more than one token, or an unknown number of them.
SELECT
    service, instance,
    sum(n) AS requests,
    sum(ended_ok) AS could_tell,
    sum(with_tokens) AS tokens,
    sum(with_phases) AS phases,
    sum(with_queue) AS queue,
    sum(with_preemptions) AS preemption,
    groupArrayArray(examples) AS some,
    sum(with_kv) AS kv,
    sum(announced) AS in_flight,
    sum(starts) AS cold_start
FROM
(
    SELECT service, instance, count() AS n, countIf(status = 'ok') AS ended_ok,
        countIf(status = 'ok' AND output_tokens IS NOT NULL) AS with_tokens,
        countIf(status = 'ok' AND prefill_ns IS NOT NULL) AS with_phases,
        countIf(status = 'ok' AND queue_ns IS NOT NULL) AS with_queue,
        countIf(status = 'ok' AND preemptions IS NOT NULL) AS with_preemptions,
        groupArrayLastIf(20)((lower(hex(trace_id)), lower(hex(span_id)), toUnixTimestamp64Nano(start), toUnixTimestamp64Nano(end)),
            status = 'ok' AND ifNull(output_tokens > 1, true)) AS examples,
        0 AS with_kv, 0 AS announced, 0 AS starts
    FROM requests
    WHERE $parts.ended_in_window AND $filter
    GROUP BY ALL
    UNION ALL
    SELECT service, instance, 0, 0, 0, 0, 0, countIf(preempted IS NOT NULL), [], countIf(kv_blocks_used IS NOT NULL), 0, 0
    FROM steps
    WHERE $parts.started_in_window AND $process_filter
    GROUP BY ALL
    UNION ALL
    SELECT service, instance, 0, 0, 0, 0, 0, 0, [], 0, count(), 0
    FROM open_requests
    WHERE seen >= fromUnixTimestamp64Nano({start_ns:Int64}) AND start < fromUnixTimestamp64Nano({end_ns:Int64}) AND $filter
    GROUP BY ALL
    UNION ALL
    SELECT service, instance, 0, 0, 0, 0, 0, 0, [], 0, 0, count()
    FROM cold_starts
    WHERE $parts.started_in_window AND $process_filter
    GROUP BY ALL
)
GROUP BY service, instance
