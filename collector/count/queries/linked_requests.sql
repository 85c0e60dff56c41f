-- Requests that may be the same as given ones, seen by another: they have a response id or a trace in common. `hours` since 1970 are
-- those about the ends of the given ones, which the primary key finds: the slowest requests of a month lie in few of its hours.
SELECT
    lower(hex(trace_id)) AS trace_id_hex, lower(hex(span_id)) AS span_id_hex, lower(hex(parent_span_id)) AS parent_hex, request_id,
    engine, service, instance, vantage, toUnixTimestamp64Nano(end) AS ended_ns, status, ttft_ns, e2e_ns
FROM requests
WHERE intDiv(toUnixTimestamp64Nano(end), 3600000000000) IN {hours:Array(Int64)}
  AND (request_id IN {request_ids:Array(String)} OR trace_id IN $parts.given_traces)
  AND $filter
LIMIT {limit:UInt32}
