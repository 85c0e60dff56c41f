-- The columns of the table `otel_traces` of OpenTelemetry's ClickHouse exporter, with their types, codecs and order:
-- github.com/open-telemetry/opentelemetry-collector-contrib, exporter/clickhouseexporter (commit 2bf6b9e1, Apache 2.0).
-- Its indices are left out; they would add to its size.
CREATE TABLE IF NOT EXISTS otel_traces
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
