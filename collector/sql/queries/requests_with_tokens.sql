-- Those of the given traces' requests that have single tokens after the first.
SELECT DISTINCT lower(hex(trace_id)) AS trace_id_hex, lower(hex(request_span_id)) AS span_id_hex
FROM tokens
WHERE token_index > 0 AND minute >= toStartOfMinute(fromUnixTimestamp64Nano({since_ns:Int64}))
  AND trace_id IN arrayMap(id -> toFixedString(unhex(id), 16), {trace_ids:Array(String)})
