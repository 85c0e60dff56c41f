-- A span as it is held: without the attributes that say where in the engine's code it was made, or what was asked and answered.
claim, trace_id, span_id, parent_span_id, service, instance, variant, $tenant AS tenant, start, end, duration_ns,
mapConcat(
    map('process_tenant', $process_tenant),
    mapFilter((key, value) -> value != '' AND NOT match(key, '^(code|thread)[.]|$content_keys'), text),
    if($finish_reason != '', map('finish_reason', $finish_reason), map()),
    mapFilter((key, _) -> startsWith(key, 'tokentrail.label.'), $labels_beside)) AS text,
mapFilter((key, value) -> NOT isNaN(value) AND NOT match(key, '^(code|thread)[.]'), number) AS number,
arrayMap(event -> (event.name, fromUnixTimestamp64Nano(event.time_unix_nano, 'UTC'),
    mapFilter((key, _) -> key IN ('status', 'model'),
        CAST((event.attributes.key, event.attributes.value.string_value), 'Map(String, String)'))), spans_to_hold.events) AS events,
status_code, status_message
