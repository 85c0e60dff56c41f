-- Cold starts that overlap the window, newest first, of many some of each tenant, with the number of matching requests that waited for each.
-- no rows without: cold_starts
SELECT
    lower(hex(cold.trace_id)) AS trace_id_hex, cold.began_ns AS began_ns, cold.duration_ns AS duration_ns, engine,
    $parts.process, variant, model, status, error_type,
    countIf(waiting.began_ns < cold.began_ns + toInt64(cold.duration_ns) AND waiting.ended_ns > cold.began_ns) AS waited
FROM
(
    SELECT *, toUnixTimestamp64Nano(start) AS began_ns
    FROM cold_starts
    WHERE phase = ''
      AND start < fromUnixTimestamp64Nano({end_ns:Int64})
      AND toUnixTimestamp64Nano(start) + duration_ns >= {start_ns:Int64}
      AND $process_filter
    ORDER BY row_number() OVER (PARTITION BY process_tenant ORDER BY start DESC, trace_id), start DESC, trace_id
    LIMIT {limit:UInt32}
) AS cold
LEFT JOIN
(
    SELECT $parts.process, toUnixTimestamp64Nano(start) AS began_ns, toUnixTimestamp64Nano(end) AS ended_ns
    FROM requests
    WHERE $parts.ended_in_window AND $filter AND cold_start_ns > 0
) AS waiting USING ($parts.process)
GROUP BY ALL
ORDER BY began_ns DESC, trace_id_hex
