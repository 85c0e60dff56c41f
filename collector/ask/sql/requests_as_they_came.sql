-- Requests with what their engine process did when they came, and where their time went. Of the process: its last step that began
-- before, at most a minute before (NULL: it told none), and how long it had had no request (NULL: the store has none before it, or
-- some were sampled away). Of its time: microseconds by what people call the causes, before the first token and after it.
SELECT
    *,
    if(step_start + INTERVAL 1 MINUTE >= start, step_running, NULL) AS batch_at_arrival,
    if(step_start + INTERVAL 1 MINUTE >= start AND step_total > 0, step_used / step_total, NULL) AS kv_usage_at_arrival,
    if(before_start = 0 OR before_weight != 1, NULL, greatest(toUnixTimestamp64Nano(start) - before_end, 0) / 1e9) AS idle_time
FROM
(
    SELECT *, toUInt32($parts.request_key) AS key, toUnixTimestamp64Nano(start) AS start_ns
    FROM ($parts.rows_of_requests)
    WHERE $parts.ended_in_window AND $filter
) AS came
ASOF LEFT JOIN
(
    SELECT
        $parts.process_key AS step_process, start AS step_start, running AS step_running, kv_blocks_used AS step_used,
        kv_blocks_total AS step_total
    FROM steps
    WHERE start >= fromUnixTimestamp64Nano({start_ns:Int64}) - $parts.longest_event AND start < fromUnixTimestamp64Nano({end_ns:Int64})
        AND $own
) AS step ON $parts.process_key = step_process AND start >= step_start
ASOF LEFT JOIN
(
    SELECT
        process AS before_process, toUnixTimestamp64Nano(began) AS before_start,
        max(until) OVER (PARTITION BY process ORDER BY began ROWS UNBOUNDED PRECEDING) AS before_end,
        max(counted) OVER (PARTITION BY process) AS before_weight
    FROM
    (
        SELECT $parts.process_key AS process, start AS began, toUnixTimestamp64Nano(end) AS until, weight AS counted
        FROM requests
        WHERE end >= fromUnixTimestamp64Nano({start_ns:Int64}) - $parts.end_margin AND start < fromUnixTimestamp64Nano({end_ns:Int64})
            AND $own
        UNION ALL
        SELECT $parts.process_key, start, 9223372036854775807, 1
        FROM open_requests FINAL
        WHERE NOT ended AND start < fromUnixTimestamp64Nano({end_ns:Int64})
            AND seen >= fromUnixTimestamp64Nano({start_ns:Int64}) - $parts.end_margin AND $own
    )
) AS earlier ON $parts.process_key = before_process AND start_ns > before_start
ANY LEFT JOIN
(
    SELECT
        end AS cause_end, request_key, level != 'none' AS is_explained, greatest(ifNull(output_tokens, 1), 1) - 1 AS cause_tokens,
        $first AS cause_first, $rest AS cause_rest
    FROM causes FINAL
    WHERE $parts.ended_in_window
) AS explained ON end = cause_end AND key = request_key
