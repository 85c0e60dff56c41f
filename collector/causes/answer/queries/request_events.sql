-- KV events and cold starts of the request's engine process while the request ran; where there are too many, its own before those of others.
-- no rows without: kv_events, cold_starts
SELECT *, count() OVER () AS events_total, countIf(own) OVER () AS own_total FROM
(
SELECT
    concat('kv.', kind) AS kind, reason, toUnixTimestamp64Nano(start) - {began_ns:Int64} AS offset_ns, duration_ns,
    blocks, bytes, beneficiary, trace_id = unhex({trace_id:String}) AND request_span_id IN ('', unhex({span_id:String})) AS own
FROM kv_events
WHERE $parts.of_process_of_request
  AND start <= fromUnixTimestamp64Nano({ended_ns:Int64})
  AND start >= fromUnixTimestamp64Nano({began_ns:Int64}) - $parts.longest_event
  AND toUnixTimestamp64Nano(start) + duration_ns >= {began_ns:Int64}
UNION ALL
SELECT
    'cold_start' AS kind, error_type AS reason, toUnixTimestamp64Nano(start) - {began_ns:Int64} AS offset_ns, duration_ns,
    0 AS blocks, NULL AS bytes, '' AS beneficiary, true AS own
FROM cold_starts
WHERE phase = '' AND $parts.of_process_of_request
  AND start <= fromUnixTimestamp64Nano({ended_ns:Int64})
  AND start >= fromUnixTimestamp64Nano({began_ns:Int64}) - $parts.longest_event
  AND toUnixTimestamp64Nano(start) + duration_ns >= {began_ns:Int64}
)
ORDER BY own DESC, offset_ns, duration_ns, kind, reason, beneficiary, blocks
LIMIT {limit:UInt32}
