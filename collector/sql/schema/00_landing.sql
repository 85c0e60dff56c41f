-- OTLP arrives here: a segment of the log is inserted as it was received, and ClickHouse decodes it (FORMAT
-- ProtobufSingle, otlp_traces.proto). A Null table stores nothing. The materialised views that read it store rows.

CREATE TABLE IF NOT EXISTS otlp_traces
(
    resource_spans Array(Tuple(
        resource Tuple(attributes Array(Tuple(key String, value Tuple($any_value, bytes_value String)))),
        scope_spans Array(Tuple(
            scope Tuple(name String),
            spans Array(Tuple(
                trace_id FixedString(16), span_id FixedString(8), parent_span_id String, name String, kind Int32,
                start_time_unix_nano UInt64, end_time_unix_nano UInt64,
                attributes $span_attributes,
                events $span_events,
                status Tuple(message String, code Int32)))))))
)
ENGINE = Null;

-- Requests that the joiner has joined with their parts (30_held.sql).
CREATE TABLE IF NOT EXISTS joins
(
    $held_columns,
    parts $held_parts
)
ENGINE = Null;

-- Log records, decoded by otlp_logs.proto. Engines' views read the records that they know. The check leaves out scopes that none reads.
CREATE TABLE IF NOT EXISTS otlp_logs
(
    resource_logs Array(Tuple(
        resource Tuple(attributes Array(Tuple(key String, value Tuple($any_value, bytes_value String)))),
        scope_logs Array(Tuple(
            scope Tuple(name String),
            log_records Array(Tuple(
                time_unix_nano UInt64, observed_time_unix_nano UInt64, attributes $span_attributes))))))
)
ENGINE = Null;

-- Metrics of a checked request, decoded by otlp_metrics.proto.
CREATE TABLE IF NOT EXISTS otlp_metrics
(
    resource_metrics Array(Tuple(
        resource Tuple(attributes $text_attributes),
        scope_metrics Array(Tuple(
            metrics Array(Tuple(
                name String,
                description String,
                gauge Tuple(data_points Array(Tuple(time_unix_nano UInt64, as_double Float64, attributes $text_attributes))),
                sum Tuple(
                    data_points Array(Tuple(time_unix_nano UInt64, as_double Float64, attributes $text_attributes)),
                    aggregation_temporality Int32),
                histogram Tuple(
                    data_points Array(Tuple(time_unix_nano UInt64, count UInt64, sum Float64, bucket_counts Array(UInt64),
                                            explicit_bounds Array(Float64), attributes $text_attributes)),
                    aggregation_temporality Int32)))))))
)
ENGINE = Null;
