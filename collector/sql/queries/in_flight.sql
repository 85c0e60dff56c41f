-- Requests that were announced, that have not ended and that were not lost before `start_ns` (collector.in_flight), each described by
-- its latest announcement. A day has many ends and few announcements that nothing has replaced, so the ends are looked for among
-- requests that are no older than the oldest announced one, which began at `first_ns`.
SELECT
    $parts.in_flight_columns,
    toUnixTimestamp64Nano(start) AS began_ns, toUnixTimestamp64Nano(seen) AS seen_ns
FROM
(
    SELECT *
    FROM open_requests
    WHERE start >= fromUnixTimestamp64Nano({first_ns:Int64}) AND $parts.announced AND (trace_id, span_id) NOT IN
    (
        SELECT trace_id, span_id
        FROM open_requests
        WHERE ended AND start >= fromUnixTimestamp64Nano({first_ns:Int64}) - $parts.end_margin
    )
    ORDER BY seen DESC
    LIMIT 1 BY trace_id, span_id
)
WHERE $filter
