-- One page of the spans that no engine's mapping claims, newest first.
SELECT
    lower(hex(trace_id)) AS trace_id_hex, lower(hex(span_id)) AS span_id_hex, lower(hex(parent_span_id)) AS parent_span_id_hex,
    service, instance, scope, name, kind, status_code, status_message, toUnixTimestamp64Nano(start) AS began_ns, duration_ns,
    attributes, resource,
    arrayMap(event -> (toUnixTimestamp64Nano(event.time), event.name, event.attributes), events) AS span_events
FROM spans
WHERE $parts.started_in_window AND $filter
ORDER BY start DESC, trace_id, span_id
LIMIT {limit:UInt32} OFFSET {offset:UInt64}
