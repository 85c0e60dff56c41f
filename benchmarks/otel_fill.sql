-- Every span of the landing table becomes a row of `otel_traces`, as the exporter would write it.
CREATE MATERIALIZED VIEW otel_fill TO otel_traces AS
SELECT
    fromUnixTimestamp64Nano(span.start_time_unix_nano) AS Timestamp,
    lower(hex(span.trace_id)) AS TraceId,
    lower(hex(span.span_id)) AS SpanId,
    lower(hex(span.parent_span_id)) AS ParentSpanId,
    span.name AS SpanName,
    'Internal' AS SpanKind,
    ResourceAttributes['service.name'] AS ServiceName,
    CAST((resource.attributes.key, resource.attributes.value.string_value), 'Map(LowCardinality(String), String)') AS ResourceAttributes,
    scoped.scope.name AS ScopeName,
    CAST((span.attributes.key, arrayMap(v -> toString(v.int_value), span.attributes.value)), 'Map(LowCardinality(String), String)') AS SpanAttributes,
    span.end_time_unix_nano - span.start_time_unix_nano AS Duration,
    'Unset' AS StatusCode
FROM
(
    SELECT resource, scoped, arrayJoin(scoped.spans) AS span
    FROM
    (
        SELECT resource_span.resource AS resource, arrayJoin(resource_span.scope_spans) AS scoped
        FROM (SELECT arrayJoin(resource_spans) AS resource_span FROM otlp_traces)
    )
);
