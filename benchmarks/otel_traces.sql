-- The columns of the table `otel_traces` of OpenTelemetry's ClickHouse exporter, with their types, codecs and order:
-- github.com/open-telemetry/opentelemetry-collector-contrib, exporter/clickhouseexporter (commit 2bf6b9e1, Apache 2.0).
-- Its indices are left out; they would add to its size.
CREATE TABLE otel_traces
(
    Timestamp          DateTime64(9)                       CODEC(Delta(8), ZSTD(1)),
    TraceId            String                              CODEC(ZSTD(1)),
    SpanId             String                              CODEC(ZSTD(1)),
    ParentSpanId       String                              CODEC(ZSTD(1)),
    TraceState         String                              CODEC(ZSTD(1)),
    SpanName           LowCardinality(String)              CODEC(ZSTD(1)),
    SpanKind           LowCardinality(String)              CODEC(ZSTD(1)),
    ServiceName        LowCardinality(String)              CODEC(ZSTD(1)),
    ResourceAttributes Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    ScopeName          String                              CODEC(ZSTD(1)),
    ScopeVersion       String                              CODEC(ZSTD(1)),
    SpanAttributes     Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    Duration           UInt64                              CODEC(T64, ZSTD(1)),
    StatusCode         LowCardinality(String)              CODEC(ZSTD(1)),
    StatusMessage      String                              CODEC(ZSTD(1))
)
ENGINE = MergeTree
PARTITION BY toDate(Timestamp)
ORDER BY (ServiceName, SpanName, toDateTime(Timestamp), Timestamp);

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
