-- The phases of some requests of a time, by `trace id` and `span id` behind each other as hex digits.
-- no rows without: phases
SELECT
    lower(hex(concat(trace_id, request_span_id))) AS key, toUnixTimestamp64Nano(start) AS start_ns, duration_ns, name
FROM phases
WHERE minute >= toStartOfMinute(fromUnixTimestamp64Nano({start_ns:Int64})) AND minute < fromUnixTimestamp64Nano({end_ns:Int64}) + INTERVAL 61 MINUTE
  AND process_tenant = {process_tenant:String}
  AND (trace_id, request_span_id) IN (
    SELECT toFixedString(unhex(substring(id, 1, 32)), 16), toFixedString(unhex(substring(id, 33)), 8) FROM (SELECT arrayJoin({ids:Array(String)}) AS id)
  )
ORDER BY start, duration_ns, name, key
