-- Requests that may be the same as given ones, seen by another: they have a response id or a trace in common.
SELECT
    lower(hex(trace_id)) AS trace_id_hex, lower(hex(span_id)) AS span_id_hex, lower(hex(parent_span_id)) AS parent_hex, request_id,
    engine, service, instance, vantage, status, ttft_ns, e2e_ns
FROM requests
WHERE end >= fromUnixTimestamp64Nano({start_ns:Int64}) - $parts.end_margin
  AND end <= fromUnixTimestamp64Nano({end_ns:Int64}) + $parts.end_margin
  AND (request_id IN {request_ids:Array(String)} OR trace_id IN arrayMap(id -> toFixedString(unhex(id), 16), {trace_ids:Array(String)}))
  AND $filter
LIMIT {limit:UInt32}
