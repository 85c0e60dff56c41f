-- Requests that were announced and not lost before `start_ns`, each described by its latest announcement (collector.count.in_flight).
-- Some have ended since: ended_announced.sql has their keys.
-- no rows without: open_requests
SELECT
    $parts.in_flight_columns, last_token_ns, gap_ns,
    toUnixTimestamp64Nano(start) AS began_ns, toUnixTimestamp64Nano(seen) AS seen_ns,
    toUnixTimestamp64Nano(heard) AS heard_ns, false AS unmeasured, $parts.request_key AS key
FROM
(
    SELECT *, fromUnixTimestamp64Nano({end_ns:Int64}) AS end -- for a filter of times: it goes on
    FROM open_requests
    PREWHERE $parts.announced
    ORDER BY seen DESC
    LIMIT 1 BY trace_id, span_id, process_tenant
)
WHERE $filter
