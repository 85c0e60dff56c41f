-- Requests that had not ended at `end_ns`, each described by its latest announcement, and those that have ended since by their
-- row. Those that were lost before `start_ns` are left out (collector.in_flight). A day has many ends and few announcements that
-- nothing has replaced, so the ends are looked for among requests that are no older than these.
SELECT
    $parts.in_flight_columns,
    toUnixTimestamp64Nano(start) AS began_ns, toUnixTimestamp64Nano(seen) AS seen_ns
FROM
(
    SELECT *
    FROM open_requests
    WHERE $parts.announced AND (trace_id, span_id) NOT IN
    (
        SELECT trace_id, span_id
        FROM open_requests
        WHERE ended AND start >= (SELECT minOrNull(start) FROM open_requests WHERE $parts.announced) - $parts.end_margin
    )
    ORDER BY seen DESC
    LIMIT 1 BY trace_id, span_id
)
WHERE $filter
UNION ALL
SELECT
    $parts.in_flight_columns,
    toUnixTimestamp64Nano(start), toUnixTimestamp64Nano(end)
FROM requests
WHERE end > fromUnixTimestamp64Nano({end_ns:Int64}) AND end < fromUnixTimestamp64Nano({end_ns:Int64}) + $parts.end_margin
  AND start <= fromUnixTimestamp64Nano({end_ns:Int64}) AND $filter
