-- Where OTLP arrives: a segment of the log is inserted here as it was received and ClickHouse decodes it
-- (FORMAT ProtobufSingle, otlp_traces.proto). A Null table keeps nothing; the materialised views below it do.
-- `value.value` says which kind of value an attribute has.

CREATE TABLE IF NOT EXISTS otlp_traces
(
    resource_spans Array(Tuple(
        resource Tuple(attributes Array(Tuple(key String, value Tuple(
            value Enum8('none' = 0, 'string_value' = 1, 'bool_value' = 2, 'int_value' = 3, 'double_value' = 4, 'array_value' = 5, 'bytes_value' = 7),
            string_value String, bool_value Bool, int_value Int64, double_value Float64, bytes_value String)))),
        scope_spans Array(Tuple(
            scope Tuple(name String),
            spans Array(Tuple(
                trace_id FixedString(16), span_id FixedString(8), parent_span_id String, name String, kind Int32,
                start_time_unix_nano UInt64, end_time_unix_nano UInt64,
                attributes Array(Tuple(key String, value Tuple(
                    value Enum8('none' = 0, 'string_value' = 1, 'bool_value' = 2, 'int_value' = 3, 'double_value' = 4, 'array_value' = 5, 'bytes_value' = 7),
                    string_value String, bool_value Bool, int_value Int64, double_value Float64, bytes_value String,
                    array_value Tuple(values Array(Tuple(string_value String, bool_value Bool, int_value Int64, double_value Float64)))))),
                events Array(Tuple(time_unix_nano UInt64, name String, attributes Array(Tuple(key String, value Tuple(
                    value Enum8('none' = 0, 'string_value' = 1, 'bool_value' = 2, 'int_value' = 3, 'double_value' = 4, 'array_value' = 5, 'bytes_value' = 7),
                    string_value String, bool_value Bool, int_value Int64, double_value Float64))))),
                status Tuple(message String, code Int32)))))))
)
ENGINE = Null;
