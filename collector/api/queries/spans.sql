-- One page of the spans that no engine's mapping claims, newest first.
SELECT
    lower(hex(trace_id)) AS trace_id_hex, lower(hex(span_id)) AS span_id_hex, lower(hex(parent_span_id)) AS parent_span_id_hex,
    service, instance, scope, name, kind, status_code, status_message, toUnixTimestamp64Nano(start) AS began_ns, duration_ns,
    -- As plain texts, each of which counts: a key of many rows is one text of LowCardinality.
    CAST(spans.attributes, 'Map(String, String)') AS attributes, CAST(spans.resource, 'Map(String, String)') AS resource,
    CAST(arrayMap(event -> (toUnixTimestamp64Nano(event.time), event.name, event.attributes), events),
        'Array(Tuple(Int64, String, Map(String, String)))') AS span_events
FROM spans
WHERE $parts.started_in_window AND $filter
ORDER BY start DESC, trace_id, span_id
LIMIT {limit:UInt32} OFFSET {offset:UInt64}
$parts.largest_page
