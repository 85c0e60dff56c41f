CREATE TABLE cold_starts
(
    `start` DateTime64(9, 'UTC') CODEC(Delta(8), ZSTD(1)),
    `duration_ns` UInt64,
    `trace_id` FixedString(16),
    `span_id` FixedString(8),
    `parent_span_id` String,
    `engine` LowCardinality(String),
    `service` LowCardinality(String),
    `instance` LowCardinality(String),
    `variant` LowCardinality(String),
    `model` LowCardinality(String),
    `phase` LowCardinality(String),
    `status` LowCardinality(String),
    `error_type` LowCardinality(String),
    `segment` String CODEC(ZSTD(1))
)
ENGINE = MergeTree
PARTITION BY toYYYYMM(start)
ORDER BY (start, trace_id)
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, index_granularity = 8192;

CREATE TABLE kv_events
(
    `start` DateTime64(9, 'UTC') CODEC(Delta(8), ZSTD(1)),
    `service` LowCardinality(String),
    `instance` LowCardinality(String),
    `variant` LowCardinality(String),
    `kind` LowCardinality(String),
    `reason` LowCardinality(String),
    `blocks` UInt32,
    `duration_ns` UInt64,
    `step` UInt64,
    `trace_id` FixedString(16),
    `request_span_id` String,
    `segment` String CODEC(ZSTD(1))
)
ENGINE = MergeTree
PARTITION BY toDate(start)
ORDER BY (start, instance)
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, index_granularity = 8192;

CREATE TABLE open_requests
(
    `start` DateTime64(9, 'UTC'),
    `seen` DateTime64(9, 'UTC'),
    `trace_id` FixedString(16),
    `span_id` FixedString(8),
    `request_id` String,
    `engine` LowCardinality(String),
    `service` LowCardinality(String),
    `instance` LowCardinality(String),
    `variant` LowCardinality(String),
    `operation` LowCardinality(String),
    `model` LowCardinality(String),
    `tenant` LowCardinality(String),
    `slo_class` LowCardinality(String),
    `input_tokens` UInt32,
    `output_tokens` UInt32,
    `ttft_ns` Nullable(UInt64),
    `ended` UInt8,
    INDEX by_seen seen TYPE minmax GRANULARITY 1
)
ENGINE = ReplacingMergeTree(seen, ended)
PARTITION BY toDate(start)
ORDER BY (start, trace_id, span_id)
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, min_age_to_force_merge_seconds = 3600, min_age_to_force_merge_on_partition_only = 1, allow_experimental_replacing_merge_with_cleanup = 1, enable_replacing_merge_with_cleanup_for_min_age_to_force_merge = 1, index_granularity = 8192;

CREATE TABLE phases
(
    `minute` DateTime('UTC') CODEC(Delta(4), ZSTD(1)),
    `trace_id` FixedString(16) CODEC(ZSTD(1)),
    `request_span_id` FixedString(8) CODEC(ZSTD(1)),
    `start` DateTime64(9, 'UTC') CODEC(Delta(8), ZSTD(1)),
    `name` LowCardinality(String),
    `duration_ns` UInt64 CODEC(T64, ZSTD(1))
)
ENGINE = MergeTree
PARTITION BY toDate(minute)
ORDER BY (minute, trace_id, request_span_id, start)
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, index_granularity = 8192;

CREATE TABLE requests
(
    `end` DateTime64(9, 'UTC') CODEC(Delta(8), ZSTD(1)),
    `start` DateTime64(9, 'UTC') CODEC(Delta(8), ZSTD(1)),
    `trace_id` FixedString(16),
    `span_id` FixedString(8),
    `parent_span_id` String,
    `request_id` String,
    `engine` LowCardinality(String),
    `service` LowCardinality(String),
    `instance` LowCardinality(String),
    `variant` LowCardinality(String),
    `vantage` LowCardinality(String),
    `operation` LowCardinality(String),
    `model` LowCardinality(String),
    `tenant` LowCardinality(String),
    `slo_class` LowCardinality(String),
    `status` LowCardinality(String),
    `error_type` LowCardinality(String),
    `finish_reason` LowCardinality(String),
    `input_tokens` UInt32,
    `output_tokens` UInt32,
    `cached_tokens` UInt32,
    `reasoning_tokens` UInt32,
    `preemptions` UInt32,
    `ttft_ns` Nullable(UInt64),
    `tpot_ns` Nullable(Float64),
    `e2e_ns` UInt64,
    `queue_ns` Nullable(UInt64),
    `cold_start_ns` Nullable(UInt64),
    `prefill_ns` Nullable(UInt64),
    `decode_ns` Nullable(UInt64),
    `preempted_ns` Nullable(UInt64),
    `kv_transfer_ns` Nullable(UInt64),
    `stalled_ns` Nullable(UInt64),
    `segment` String CODEC(ZSTD(1)),
    `ingested_at` DateTime64(3, 'UTC') CODEC(Delta(8), ZSTD(1)),
    INDEX by_trace trace_id TYPE bloom_filter(0.001) GRANULARITY 1,
    INDEX by_ingest ingested_at TYPE minmax GRANULARITY 1
)
ENGINE = MergeTree
PARTITION BY toDate(end)
ORDER BY (end, trace_id, span_id)
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, index_granularity = 8192;

CREATE TABLE schema_version
(
    `version` UInt32
)
ENGINE = MergeTree
ORDER BY version
SETTINGS index_granularity = 8192;

CREATE TABLE spans
(
    `start` DateTime64(9, 'UTC') CODEC(Delta(8), ZSTD(1)),
    `duration_ns` UInt64,
    `trace_id` FixedString(16),
    `span_id` FixedString(8),
    `parent_span_id` String,
    `service` LowCardinality(String),
    `instance` LowCardinality(String),
    `scope` LowCardinality(String),
    `name` LowCardinality(String),
    `kind` UInt8,
    `status_code` UInt8,
    `status_message` String,
    `attributes` Map(LowCardinality(String), String),
    `resource` Map(LowCardinality(String), String),
    `events` Array(Tuple(
        time DateTime64(9, 'UTC'),
        name LowCardinality(String),
        attributes Map(LowCardinality(String), String)))
)
ENGINE = MergeTree
PARTITION BY toDate(start)
ORDER BY (service, name, start)
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, index_granularity = 8192;

CREATE TABLE steps
(
    `start` DateTime64(9, 'UTC') CODEC(Delta(8), ZSTD(1)),
    `service` LowCardinality(String),
    `instance` LowCardinality(String),
    `variant` LowCardinality(String),
    `step` UInt64 CODEC(Delta(8), ZSTD(1)),
    `duration_ns` UInt64 CODEC(T64, ZSTD(1)),
    `prefill_tokens` UInt32 CODEC(T64, ZSTD(1)),
    `decode_tokens` UInt32 CODEC(T64, ZSTD(1)),
    `running` UInt32 CODEC(T64, ZSTD(1)),
    `waiting` UInt32 CODEC(T64, ZSTD(1)),
    `preempted` UInt32 CODEC(T64, ZSTD(1)),
    `kv_blocks_used` UInt32 CODEC(T64, ZSTD(1)),
    `kv_blocks_total` UInt32 CODEC(T64, ZSTD(1)),
    `kv_blocks_evicted` UInt32 CODEC(T64, ZSTD(1))
)
ENGINE = MergeTree
PARTITION BY toDate(start)
ORDER BY (service, instance, start)
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, index_granularity = 8192;

CREATE TABLE tokens
(
    `minute` DateTime('UTC') CODEC(Delta(4), ZSTD(1)),
    `trace_id` FixedString(16) CODEC(ZSTD(1)),
    `request_span_id` FixedString(8) CODEC(ZSTD(1)),
    `token_index` UInt32 CODEC(Delta(4), ZSTD(1)),
    `duration_us` UInt64 CODEC(T64, ZSTD(1)),
    `step` UInt64 CODEC(Delta(8), ZSTD(1))
)
ENGINE = MergeTree
PARTITION BY toDate(minute)
ORDER BY (minute, trace_id, request_span_id, token_index)
SETTINGS non_replicated_deduplication_window = 10000, fsync_after_insert = 1, index_granularity = 8192;

CREATE TABLE flat_spans
(
    `claim` String,
    `resource` Map(String, String),
    `service` String,
    `instance` String,
    `variant` String,
    `scope` String,
    `trace_id` FixedString(16),
    `span_id` FixedString(8),
    `parent_span_id` String,
    `name` String,
    `kind` Int32,
    `start` DateTime64(9, 'UTC'),
    `end` DateTime64(9, 'UTC'),
    `duration_ns` UInt64,
    `text` Map(String, String),
    `number` Map(String, Float64),
    `attributes` Array(Tuple(
        key String,
        value Tuple(
            value Enum8('none' = 0, 'string_value' = 1, 'bool_value' = 2, 'int_value' = 3, 'double_value' = 4, 'array_value' = 5, 'bytes_value' = 7),
            string_value String,
            bool_value Bool,
            int_value Int64,
            double_value Float64,
            bytes_value String,
            array_value Tuple(`values` Array(Tuple(
                string_value String,
                bool_value Bool,
                int_value Int64,
                double_value Float64)))))),
    `events` Array(Tuple(
        time_unix_nano UInt64,
        name String,
        attributes Array(Tuple(
            key String,
            value Tuple(
                value Enum8('none' = 0, 'string_value' = 1, 'bool_value' = 2, 'int_value' = 3, 'double_value' = 4, 'array_value' = 5, 'bytes_value' = 7),
                string_value String,
                bool_value Bool,
                int_value Int64,
                double_value Float64))))),
    `status_code` Int32,
    `status_message` String
)
ENGINE = `Null`;

CREATE TABLE genai_spans
(
    `claim` String,
    `resource` Map(String, String),
    `service` String,
    `instance` String,
    `variant` String,
    `scope` String,
    `trace_id` FixedString(16),
    `span_id` FixedString(8),
    `parent_span_id` String,
    `name` String,
    `kind` Int32,
    `start` DateTime64(9, 'UTC'),
    `end` DateTime64(9, 'UTC'),
    `duration_ns` UInt64,
    `text` Map(String, String),
    `number` Map(String, Float64),
    `attributes` Array(Tuple(
        key String,
        value Tuple(
            value Enum8('none' = 0, 'string_value' = 1, 'bool_value' = 2, 'int_value' = 3, 'double_value' = 4, 'array_value' = 5, 'bytes_value' = 7),
            string_value String,
            bool_value Bool,
            int_value Int64,
            double_value Float64,
            bytes_value String,
            array_value Tuple(`values` Array(Tuple(
                string_value String,
                bool_value Bool,
                int_value Int64,
                double_value Float64)))))),
    `events` Array(Tuple(
        time_unix_nano UInt64,
        name String,
        attributes Array(Tuple(
            key String,
            value Tuple(
                value Enum8('none' = 0, 'string_value' = 1, 'bool_value' = 2, 'int_value' = 3, 'double_value' = 4, 'array_value' = 5, 'bytes_value' = 7),
                string_value String,
                bool_value Bool,
                int_value Int64,
                double_value Float64))))),
    `status_code` Int32,
    `status_message` String
)
ENGINE = `Null`;

CREATE TABLE otlp_traces
(
    `resource_spans` Array(Tuple(
        resource Tuple(attributes Array(Tuple(
            key String,
            value Tuple(
                value Enum8('none' = 0, 'string_value' = 1, 'bool_value' = 2, 'int_value' = 3, 'double_value' = 4, 'array_value' = 5, 'bytes_value' = 7),
                string_value String,
                bool_value Bool,
                int_value Int64,
                double_value Float64,
                bytes_value String)))),
        scope_spans Array(Tuple(
            scope Tuple(name String),
            spans Array(Tuple(
                trace_id FixedString(16),
                span_id FixedString(8),
                parent_span_id String,
                name String,
                kind Int32,
                start_time_unix_nano UInt64,
                end_time_unix_nano UInt64,
                attributes Array(Tuple(
                    key String,
                    value Tuple(
                        value Enum8('none' = 0, 'string_value' = 1, 'bool_value' = 2, 'int_value' = 3, 'double_value' = 4, 'array_value' = 5, 'bytes_value' = 7),
                        string_value String,
                        bool_value Bool,
                        int_value Int64,
                        double_value Float64,
                        bytes_value String,
                        array_value Tuple(`values` Array(Tuple(
                            string_value String,
                            bool_value Bool,
                            int_value Int64,
                            double_value Float64)))))),
                events Array(Tuple(
                    time_unix_nano UInt64,
                    name String,
                    attributes Array(Tuple(
                        key String,
                        value Tuple(
                            value Enum8('none' = 0, 'string_value' = 1, 'bool_value' = 2, 'int_value' = 3, 'double_value' = 4, 'array_value' = 5, 'bytes_value' = 7),
                            string_value String,
                            bool_value Bool,
                            int_value Int64,
                            double_value Float64))))),
                status Tuple(
                    message String,
                    code Int32)))))))
)
ENGINE = `Null`;

CREATE TABLE tokentrail_events
(
    `claim` String,
    `resource` Map(String, String),
    `service` String,
    `instance` String,
    `variant` String,
    `scope` String,
    `trace_id` FixedString(16),
    `span_id` FixedString(8),
    `parent_span_id` String,
    `name` String,
    `kind` Int32,
    `start` DateTime64(9, 'UTC'),
    `end` DateTime64(9, 'UTC'),
    `duration_ns` UInt64,
    `text` Map(String, String),
    `number` Map(String, Float64),
    `attributes` Array(Tuple(
        key String,
        value Tuple(
            value Enum8('none' = 0, 'string_value' = 1, 'bool_value' = 2, 'int_value' = 3, 'double_value' = 4, 'array_value' = 5, 'bytes_value' = 7),
            string_value String,
            bool_value Bool,
            int_value Int64,
            double_value Float64,
            bytes_value String,
            array_value Tuple(`values` Array(Tuple(
                string_value String,
                bool_value Bool,
                int_value Int64,
                double_value Float64)))))),
    `events` Array(Tuple(
        time_unix_nano UInt64,
        name String,
        attributes Array(Tuple(
            key String,
            value Tuple(
                value Enum8('none' = 0, 'string_value' = 1, 'bool_value' = 2, 'int_value' = 3, 'double_value' = 4, 'array_value' = 5, 'bytes_value' = 7),
                string_value String,
                bool_value Bool,
                int_value Int64,
                double_value Float64))))),
    `status_code` Int32,
    `status_message` String
)
ENGINE = `Null`;

CREATE TABLE unclaimed_spans
(
    `claim` String,
    `resource` Map(String, String),
    `service` String,
    `instance` String,
    `variant` String,
    `scope` String,
    `trace_id` FixedString(16),
    `span_id` FixedString(8),
    `parent_span_id` String,
    `name` String,
    `kind` Int32,
    `start` DateTime64(9, 'UTC'),
    `end` DateTime64(9, 'UTC'),
    `duration_ns` UInt64,
    `text` Map(String, String),
    `number` Map(String, Float64),
    `attributes` Array(Tuple(
        key String,
        value Tuple(
            value Enum8('none' = 0, 'string_value' = 1, 'bool_value' = 2, 'int_value' = 3, 'double_value' = 4, 'array_value' = 5, 'bytes_value' = 7),
            string_value String,
            bool_value Bool,
            int_value Int64,
            double_value Float64,
            bytes_value String,
            array_value Tuple(`values` Array(Tuple(
                string_value String,
                bool_value Bool,
                int_value Int64,
                double_value Float64)))))),
    `events` Array(Tuple(
        time_unix_nano UInt64,
        name String,
        attributes Array(Tuple(
            key String,
            value Tuple(
                value Enum8('none' = 0, 'string_value' = 1, 'bool_value' = 2, 'int_value' = 3, 'double_value' = 4, 'array_value' = 5, 'bytes_value' = 7),
                string_value String,
                bool_value Bool,
                int_value Int64,
                double_value Float64))))),
    `status_code` Int32,
    `status_message` String
)
ENGINE = `Null`;

CREATE TABLE vllm_spans
(
    `claim` String,
    `resource` Map(String, String),
    `service` String,
    `instance` String,
    `variant` String,
    `scope` String,
    `trace_id` FixedString(16),
    `span_id` FixedString(8),
    `parent_span_id` String,
    `name` String,
    `kind` Int32,
    `start` DateTime64(9, 'UTC'),
    `end` DateTime64(9, 'UTC'),
    `duration_ns` UInt64,
    `text` Map(String, String),
    `number` Map(String, Float64),
    `attributes` Array(Tuple(
        key String,
        value Tuple(
            value Enum8('none' = 0, 'string_value' = 1, 'bool_value' = 2, 'int_value' = 3, 'double_value' = 4, 'array_value' = 5, 'bytes_value' = 7),
            string_value String,
            bool_value Bool,
            int_value Int64,
            double_value Float64,
            bytes_value String,
            array_value Tuple(`values` Array(Tuple(
                string_value String,
                bool_value Bool,
                int_value Int64,
                double_value Float64)))))),
    `events` Array(Tuple(
        time_unix_nano UInt64,
        name String,
        attributes Array(Tuple(
            key String,
            value Tuple(
                value Enum8('none' = 0, 'string_value' = 1, 'bool_value' = 2, 'int_value' = 3, 'double_value' = 4, 'array_value' = 5, 'bytes_value' = 7),
                string_value String,
                bool_value Bool,
                int_value Int64,
                double_value Float64))))),
    `status_code` Int32,
    `status_message` String
)
ENGINE = `Null`;

CREATE MATERIALIZED VIEW flatten_spans TO flat_spans
(
    `claim` String,
    `resource` Map(String, String),
    `service` String,
    `instance` String,
    `variant` String,
    `scope` String,
    `trace_id` FixedString(16),
    `span_id` FixedString(8),
    `parent_span_id` String,
    `name` String,
    `kind` Int32,
    `start` DateTime64(9, 'UTC'),
    `end` DateTime64(9, 'UTC'),
    `duration_ns` Int64,
    `text` Map(String, String),
    `number` Map(String, Float64),
    `attributes` Array(Tuple(
        key String,
        value Tuple(
            value Enum8('none' = 0, 'string_value' = 1, 'bool_value' = 2, 'int_value' = 3, 'double_value' = 4, 'array_value' = 5, 'bytes_value' = 7),
            string_value String,
            bool_value Bool,
            int_value Int64,
            double_value Float64,
            bytes_value String,
            array_value Tuple(`values` Array(Tuple(
                string_value String,
                bool_value Bool,
                int_value Int64,
                double_value Float64)))))),
    `events` Array(Tuple(
        time_unix_nano UInt64,
        name String,
        attributes Array(Tuple(
            key String,
            value Tuple(
                value Enum8('none' = 0, 'string_value' = 1, 'bool_value' = 2, 'int_value' = 3, 'double_value' = 4, 'array_value' = 5, 'bytes_value' = 7),
                string_value String,
                bool_value Bool,
                int_value Int64,
                double_value Float64))))),
    `status_code` Int32,
    `status_message` String
)
COMMENT 'f6c75aebbccc12e8'
AS SELECT
    multiIf((span.name IN ('tokentrail.phase', 'tokentrail.step', 'tokentrail.request.open', 'tokentrail.kv.evict', 'tokentrail.kv.offload', 'tokentrail.kv.restore')), span.name, startsWith(span.name, 'tokentrail.cold_start'), 'tokentrail.cold_start', (scope = 'tokentrail') AND has(span.attributes.key, 'gen_ai.operation.name'), 'tokentrail.request', startsWith(scope, 'vllm.'), multiIf(span.name = 'llm_request', 'vllm.request', (span.kind = 1) AND has(span.attributes.key, 'code.function'), 'vllm.cold_start', ''), ((text['gen_ai.operation.name']) IN ('chat', 'text_completion', 'generate_content')), 'genai.request', '') AS claim,
    resource,
    resource['service.name'] AS service,
    resource['service.instance.id'] AS instance,
    resource['tokentrail.variant'] AS variant,
    scope,
    span.trace_id AS trace_id,
    span.span_id AS span_id,
    span.parent_span_id AS parent_span_id,
    span.name AS name,
    span.kind AS kind,
    fromUnixTimestamp64Nano(span.start_time_unix_nano, 'UTC') AS start,
    fromUnixTimestamp64Nano(span.end_time_unix_nano, 'UTC') AS end,
    span.end_time_unix_nano - span.start_time_unix_nano AS duration_ns,
    CAST((span.attributes.key, span.attributes.value.string_value), 'Map(String, String)') AS text,
    CAST((span.attributes.key, arrayMap(v -> if(isFinite(v.double_value), least(greatest((v.int_value + v.double_value) + v.bool_value, 0), 1000000000000000000.), 0), span.attributes.value)), 'Map(String, Float64)') AS number,
    span.attributes AS attributes,
    span.events AS events,
    span.status.code AS status_code,
    span.status.message AS status_message
FROM
(
    SELECT
        resource,
        scoped.scope.name AS scope,
        arrayJoin(arrayFilter(s -> (s.name != 'tokentrail.token'), scoped.spans)) AS span
    FROM
    (
        SELECT
            CAST((resource_span.resource.attributes.key, resource_span.resource.attributes.value.string_value), 'Map(String, String)') AS resource,
            arrayJoin(resource_span.scope_spans) AS scoped
        FROM
        (
            SELECT arrayJoin(resource_spans) AS resource_span
            FROM otlp_traces
        )
    )
);

CREATE MATERIALIZED VIEW genai_requests TO requests
(
    `end` DateTime64(9, 'UTC'),
    `start` DateTime64(9, 'UTC'),
    `trace_id` FixedString(16),
    `span_id` FixedString(8),
    `parent_span_id` String,
    `request_id` String,
    `engine` String,
    `service` String,
    `instance` String,
    `variant` String,
    `vantage` String,
    `operation` String,
    `model` String,
    `tenant` String,
    `slo_class` String,
    `status` String,
    `error_type` String,
    `finish_reason` String,
    `input_tokens` Float64,
    `output_tokens` UInt32,
    `cached_tokens` Float64,
    `reasoning_tokens` Float64,
    `ttft_ns` Nullable(UInt64),
    `tpot_ns` Nullable(Float64),
    `e2e_ns` UInt64,
    `segment` String,
    `ingested_at` DateTime64(3, 'UTC')
)
COMMENT '95f005f1538c5722'
AS WITH
    toUInt32(number['gen_ai.usage.output_tokens']) AS n,
    multiIf(mapContains(number, 'gen_ai.response.time_to_first_chunk'), toUInt64(round((number['gen_ai.response.time_to_first_chunk']) * 1000000000.)), mapContains(number, 'gen_ai.request.stream') AND ((number['gen_ai.request.stream']) = 0) AND (n > 0), duration_ns, NULL) AS first_ns
SELECT
    end,
    start,
    trace_id,
    span_id,
    parent_span_id,
    text['gen_ai.response.id'] AS request_id,
    'genai' AS engine,
    service,
    instance,
    variant,
    if(kind = 2, 'server', 'client') AS vantage,
    text['gen_ai.operation.name'] AS operation,
    if((text['gen_ai.response.model']) != '', text['gen_ai.response.model'], text['gen_ai.request.model']) AS model,
    text['tokentrail.tenant'] AS tenant,
    text['tokentrail.slo_class'] AS slo_class,
    if((status_code = 2) OR ((text['error.type']) != ''), 'error', 'ok') AS status,
    text['error.type'] AS error_type,
    (attributes.value.array_value.`values`.string_value[indexOf(attributes.key, 'gen_ai.response.finish_reasons')])[1] AS finish_reason,
    number['gen_ai.usage.input_tokens'] AS input_tokens,
    n AS output_tokens,
    number['gen_ai.usage.cache_read.input_tokens'] AS cached_tokens,
    number['gen_ai.usage.reasoning.output_tokens'] AS reasoning_tokens,
    first_ns AS ttft_ns,
    if((n > 1) AND mapContains(number, 'gen_ai.response.time_to_first_chunk') AND (duration_ns >= first_ns), (duration_ns - first_ns) / (n - 1), NULL) AS tpot_ns,
    duration_ns AS e2e_ns,
    getSetting('insert_deduplication_token') AS segment,
    now64(3, 'UTC') AS ingested_at
FROM genai_spans;

CREATE MATERIALIZED VIEW genai_route TO genai_spans
(
    `claim` String,
    `resource` Map(String, String),
    `service` String,
    `instance` String,
    `variant` String,
    `scope` String,
    `trace_id` FixedString(16),
    `span_id` FixedString(8),
    `parent_span_id` String,
    `name` String,
    `kind` Int32,
    `start` DateTime64(9, 'UTC'),
    `end` DateTime64(9, 'UTC'),
    `duration_ns` UInt64,
    `text` Map(String, String),
    `number` Map(String, Float64),
    `attributes` Array(Tuple(
        key String,
        value Tuple(
            value Enum8('none' = 0, 'string_value' = 1, 'bool_value' = 2, 'int_value' = 3, 'double_value' = 4, 'array_value' = 5, 'bytes_value' = 7),
            string_value String,
            bool_value Bool,
            int_value Int64,
            double_value Float64,
            bytes_value String,
            array_value Tuple(`values` Array(Tuple(
                string_value String,
                bool_value Bool,
                int_value Int64,
                double_value Float64)))))),
    `events` Array(Tuple(
        time_unix_nano UInt64,
        name String,
        attributes Array(Tuple(
            key String,
            value Tuple(
                value Enum8('none' = 0, 'string_value' = 1, 'bool_value' = 2, 'int_value' = 3, 'double_value' = 4, 'array_value' = 5, 'bytes_value' = 7),
                string_value String,
                bool_value Bool,
                int_value Int64,
                double_value Float64))))),
    `status_code` Int32,
    `status_message` String
)
COMMENT 'fa0775b4b4918eef'
AS SELECT *
FROM flat_spans
WHERE claim = 'genai.request';

CREATE MATERIALIZED VIEW keep_unclaimed TO spans
(
    `start` DateTime64(9, 'UTC'),
    `duration_ns` UInt64,
    `trace_id` FixedString(16),
    `span_id` FixedString(8),
    `parent_span_id` String,
    `service` String,
    `instance` String,
    `scope` String,
    `name` String,
    `kind` Int32,
    `status_code` Int32,
    `status_message` String,
    `attributes` Map(String, String),
    `resource` Map(String, String),
    `events` Array(Tuple(
        DateTime64(9, 'UTC'),
        String,
        Map(String, String)))
)
COMMENT '83a48d9c23583186'
AS WITH
    (v -> multiIf(v.value = 'int_value', toString(v.int_value), v.value = 'double_value', toString(v.double_value), v.value = 'bool_value', if(v.bool_value, 'true', 'false'), v.string_value)) AS as_text
SELECT
    start,
    duration_ns,
    trace_id,
    span_id,
    parent_span_id,
    service,
    instance,
    scope,
    name,
    kind,
    status_code,
    status_message,
    CAST((attributes.key, arrayMap(v -> multiIf(v.value = 'array_value', toJSONString(arrayMap(item -> if(item.string_value != '', item.string_value, toString(item.int_value + item.double_value)), v.array_value.`values`)), v.value = 'bytes_value', base64Encode(v.bytes_value), as_text(v)), attributes.value)), 'Map(String, String)') AS attributes,
    resource,
    arrayMap(e -> (fromUnixTimestamp64Nano(e.time_unix_nano, 'UTC'), e.name, CAST((e.attributes.key, arrayMap(v -> as_text(v), e.attributes.value)), 'Map(String, String)')), events) AS events
FROM unclaimed_spans;

CREATE MATERIALIZED VIEW route_unclaimed TO unclaimed_spans
(
    `claim` String,
    `resource` Map(String, String),
    `service` String,
    `instance` String,
    `variant` String,
    `scope` String,
    `trace_id` FixedString(16),
    `span_id` FixedString(8),
    `parent_span_id` String,
    `name` String,
    `kind` Int32,
    `start` DateTime64(9, 'UTC'),
    `end` DateTime64(9, 'UTC'),
    `duration_ns` UInt64,
    `text` Map(String, String),
    `number` Map(String, Float64),
    `attributes` Array(Tuple(
        key String,
        value Tuple(
            value Enum8('none' = 0, 'string_value' = 1, 'bool_value' = 2, 'int_value' = 3, 'double_value' = 4, 'array_value' = 5, 'bytes_value' = 7),
            string_value String,
            bool_value Bool,
            int_value Int64,
            double_value Float64,
            bytes_value String,
            array_value Tuple(`values` Array(Tuple(
                string_value String,
                bool_value Bool,
                int_value Int64,
                double_value Float64)))))),
    `events` Array(Tuple(
        time_unix_nano UInt64,
        name String,
        attributes Array(Tuple(
            key String,
            value Tuple(
                value Enum8('none' = 0, 'string_value' = 1, 'bool_value' = 2, 'int_value' = 3, 'double_value' = 4, 'array_value' = 5, 'bytes_value' = 7),
                string_value String,
                bool_value Bool,
                int_value Int64,
                double_value Float64))))),
    `status_code` Int32,
    `status_message` String
)
COMMENT 'b1b5e24ef09fbf08'
AS SELECT *
FROM flat_spans
WHERE claim = '';

CREATE MATERIALIZED VIEW tokentrail_cold_starts TO cold_starts
(
    `start` DateTime64(9, 'UTC'),
    `duration_ns` UInt64,
    `trace_id` FixedString(16),
    `span_id` FixedString(8),
    `parent_span_id` String,
    `engine` String,
    `service` String,
    `instance` String,
    `variant` String,
    `model` String,
    `phase` String,
    `status` String,
    `error_type` String,
    `segment` String
)
COMMENT '4fa73c9009789268'
AS SELECT
    start,
    duration_ns,
    trace_id,
    span_id,
    parent_span_id,
    'tokentrail' AS engine,
    service,
    instance,
    variant,
    text['gen_ai.request.model'] AS model,
    substring(name, length('tokentrail.cold_start.') + 1) AS phase,
    if(status_code = 2, 'error', 'ok') AS status,
    text['error.type'] AS error_type,
    getSetting('insert_deduplication_token') AS segment
FROM tokentrail_events
WHERE claim = 'tokentrail.cold_start';

CREATE MATERIALIZED VIEW tokentrail_kv_events TO kv_events
(
    `start` DateTime64(9, 'UTC'),
    `service` String,
    `instance` String,
    `variant` String,
    `kind` String,
    `reason` String,
    `blocks` Float64,
    `duration_ns` UInt64,
    `step` Float64,
    `trace_id` FixedString(16),
    `request_span_id` String,
    `segment` String
)
COMMENT 'c56fbecb26e71c5a'
AS SELECT
    start,
    service,
    instance,
    variant,
    substring(name, length('tokentrail.kv.') + 1) AS kind,
    text['tokentrail.kv.reason'] AS reason,
    number['tokentrail.kv.blocks'] AS blocks,
    duration_ns,
    number['tokentrail.step'] AS step,
    trace_id,
    parent_span_id AS request_span_id,
    getSetting('insert_deduplication_token') AS segment
FROM tokentrail_events
WHERE startsWith(claim, 'tokentrail.kv.');

CREATE MATERIALIZED VIEW tokentrail_open_requests TO open_requests
(
    `start` DateTime64(9, 'UTC'),
    `seen` DateTime64(9, 'UTC'),
    `trace_id` FixedString(16),
    `span_id` FixedString(8),
    `request_id` String,
    `engine` String,
    `service` String,
    `instance` String,
    `variant` String,
    `operation` String,
    `model` String,
    `tenant` String,
    `slo_class` String,
    `input_tokens` Float64,
    `output_tokens` Float64,
    `ttft_ns` Nullable(UInt64),
    `ended` UInt8
)
COMMENT '5089220a3de047af'
AS SELECT
    start,
    if(ended, end + toIntervalHour(1), end) AS seen,
    trace_id,
    toFixedString(if(ended, toString(flat_spans.span_id), parent_span_id), 8) AS span_id,
    text['gen_ai.response.id'] AS request_id,
    'tokentrail' AS engine,
    service,
    instance,
    variant,
    text['gen_ai.operation.name'] AS operation,
    text['gen_ai.request.model'] AS model,
    text['tokentrail.tenant'] AS tenant,
    text['tokentrail.slo_class'] AS slo_class,
    number['gen_ai.usage.input_tokens'] AS input_tokens,
    number['gen_ai.usage.output_tokens'] AS output_tokens,
    if(mapContains(number, 'gen_ai.response.time_to_first_chunk'), toUInt64(round((number['gen_ai.response.time_to_first_chunk']) * 1000000000.)), NULL) AS ttft_ns,
    claim = 'tokentrail.request' AS ended
FROM flat_spans
WHERE claim IN ('tokentrail.request.open', 'tokentrail.request');

CREATE MATERIALIZED VIEW tokentrail_phases TO phases
(
    `minute` DateTime('UTC'),
    `trace_id` FixedString(16),
    `request_span_id` FixedString(8),
    `start` DateTime64(9, 'UTC'),
    `name` String,
    `duration_ns` UInt64
)
COMMENT '98e12ca96441e576'
AS SELECT
    toStartOfMinute(end) AS minute,
    trace_id,
    toFixedString(parent_span_id, 8) AS request_span_id,
    start,
    text['tokentrail.phase.name'] AS name,
    duration_ns
FROM flat_spans
WHERE claim = 'tokentrail.phase';

CREATE MATERIALIZED VIEW tokentrail_requests TO requests
(
    `end` DateTime64(9, 'UTC'),
    `start` DateTime64(9, 'UTC'),
    `trace_id` FixedString(16),
    `span_id` FixedString(8),
    `parent_span_id` String,
    `request_id` String,
    `engine` String,
    `service` String,
    `instance` String,
    `variant` String,
    `vantage` String,
    `operation` String,
    `model` String,
    `tenant` String,
    `slo_class` String,
    `status` String,
    `error_type` String,
    `finish_reason` String,
    `input_tokens` Float64,
    `output_tokens` UInt32,
    `cached_tokens` Float64,
    `reasoning_tokens` Float64,
    `preemptions` Float64,
    `ttft_ns` Nullable(UInt64),
    `tpot_ns` Nullable(Float64),
    `e2e_ns` UInt64,
    `queue_ns` UInt64,
    `cold_start_ns` UInt64,
    `prefill_ns` UInt64,
    `decode_ns` UInt64,
    `preempted_ns` UInt64,
    `kv_transfer_ns` UInt64,
    `stalled_ns` UInt64,
    `segment` String,
    `ingested_at` DateTime64(3, 'UTC')
)
COMMENT '605492ce2bc3269b'
AS WITH
    mapContains(number, 'gen_ai.response.time_to_first_chunk') AS has_token,
    if(has_token, toUInt64(round((number['gen_ai.response.time_to_first_chunk']) * 1000000000.)), NULL) AS first_ns,
    if(mapContains(number, 'tokentrail.time_to_last_token'), toUInt64(round((number['tokentrail.time_to_last_token']) * 1000000000.)), duration_ns) AS last_ns,
    toUInt32(number['gen_ai.usage.output_tokens']) AS n
SELECT
    end,
    start,
    trace_id,
    span_id,
    parent_span_id,
    text['gen_ai.response.id'] AS request_id,
    'tokentrail' AS engine,
    service,
    instance,
    variant,
    if(kind = 3, 'client', 'server') AS vantage,
    text['gen_ai.operation.name'] AS operation,
    if((text['gen_ai.request.model']) != '', text['gen_ai.request.model'], text['gen_ai.response.model']) AS model,
    text['tokentrail.tenant'] AS tenant,
    text['tokentrail.slo_class'] AS slo_class,
    multiIf(((text['tokentrail.status']) IN ('ok', 'error', 'cancelled')), text['tokentrail.status'], status_code = 2, 'error', 'ok') AS status,
    text['error.type'] AS error_type,
    text['tokentrail.finish_reason'] AS finish_reason,
    number['gen_ai.usage.input_tokens'] AS input_tokens,
    n AS output_tokens,
    number['gen_ai.usage.cache_read.input_tokens'] AS cached_tokens,
    number['gen_ai.usage.reasoning.output_tokens'] AS reasoning_tokens,
    number['tokentrail.preemptions'] AS preemptions,
    first_ns AS ttft_ns,
    if(has_token AND (n > 1) AND (last_ns >= first_ns), (last_ns - first_ns) / (n - 1), NULL) AS tpot_ns,
    duration_ns AS e2e_ns,
    toUInt64(number['tokentrail.phase_time.queued']) AS queue_ns,
    toUInt64(number['tokentrail.phase_time.cold_start']) AS cold_start_ns,
    toUInt64(number['tokentrail.phase_time.prefill']) AS prefill_ns,
    toUInt64(number['tokentrail.phase_time.decode']) AS decode_ns,
    toUInt64(number['tokentrail.phase_time.preempted']) AS preempted_ns,
    toUInt64(number['tokentrail.phase_time.kv_transfer']) AS kv_transfer_ns,
    toUInt64(number['tokentrail.phase_time.stalled']) AS stalled_ns,
    getSetting('insert_deduplication_token') AS segment,
    now64(3, 'UTC') AS ingested_at
FROM flat_spans
WHERE claim = 'tokentrail.request';

CREATE MATERIALIZED VIEW tokentrail_route_events TO tokentrail_events
(
    `claim` String,
    `resource` Map(String, String),
    `service` String,
    `instance` String,
    `variant` String,
    `scope` String,
    `trace_id` FixedString(16),
    `span_id` FixedString(8),
    `parent_span_id` String,
    `name` String,
    `kind` Int32,
    `start` DateTime64(9, 'UTC'),
    `end` DateTime64(9, 'UTC'),
    `duration_ns` UInt64,
    `text` Map(String, String),
    `number` Map(String, Float64),
    `attributes` Array(Tuple(
        key String,
        value Tuple(
            value Enum8('none' = 0, 'string_value' = 1, 'bool_value' = 2, 'int_value' = 3, 'double_value' = 4, 'array_value' = 5, 'bytes_value' = 7),
            string_value String,
            bool_value Bool,
            int_value Int64,
            double_value Float64,
            bytes_value String,
            array_value Tuple(`values` Array(Tuple(
                string_value String,
                bool_value Bool,
                int_value Int64,
                double_value Float64)))))),
    `events` Array(Tuple(
        time_unix_nano UInt64,
        name String,
        attributes Array(Tuple(
            key String,
            value Tuple(
                value Enum8('none' = 0, 'string_value' = 1, 'bool_value' = 2, 'int_value' = 3, 'double_value' = 4, 'array_value' = 5, 'bytes_value' = 7),
                string_value String,
                bool_value Bool,
                int_value Int64,
                double_value Float64))))),
    `status_code` Int32,
    `status_message` String
)
COMMENT '155fe78bec77de68'
AS SELECT *
FROM flat_spans
WHERE startsWith(claim, 'tokentrail.kv.') OR (claim = 'tokentrail.cold_start');

CREATE MATERIALIZED VIEW tokentrail_steps TO steps
(
    `start` DateTime64(9, 'UTC'),
    `service` String,
    `instance` String,
    `variant` String,
    `step` Float64,
    `duration_ns` UInt64,
    `prefill_tokens` Float64,
    `decode_tokens` Float64,
    `running` Float64,
    `waiting` Float64,
    `preempted` Float64,
    `kv_blocks_used` Float64,
    `kv_blocks_total` Float64,
    `kv_blocks_evicted` Float64
)
COMMENT 'b8bf90370298ed4e'
AS SELECT
    start,
    service,
    instance,
    variant,
    number['tokentrail.step'] AS step,
    duration_ns,
    number['tokentrail.step.prefill_tokens'] AS prefill_tokens,
    number['tokentrail.step.decode_tokens'] AS decode_tokens,
    number['tokentrail.step.running'] AS running,
    number['tokentrail.step.waiting'] AS waiting,
    number['tokentrail.step.preempted'] AS preempted,
    number['tokentrail.step.kv_blocks_used'] AS kv_blocks_used,
    number['tokentrail.step.kv_blocks_total'] AS kv_blocks_total,
    number['tokentrail.step.kv_blocks_evicted'] AS kv_blocks_evicted
FROM flat_spans
WHERE claim = 'tokentrail.step';

CREATE MATERIALIZED VIEW tokentrail_tokens TO tokens
(
    `minute` DateTime('UTC'),
    `trace_id` FixedString(16),
    `request_span_id` FixedString(8),
    `token_index` Int64,
    `duration_us` Int64,
    `step` Int64
)
COMMENT '4ed4e769d2004c25'
AS SELECT
    toStartOfMinute(fromUnixTimestamp64Nano(span.end_time_unix_nano, 'UTC')) AS minute,
    span.trace_id AS trace_id,
    toFixedString(span.parent_span_id, 8) AS request_span_id,
    span.attributes.value.int_value[indexOf(span.attributes.key, 'gen_ai.token.index')] AS token_index,
    intDiv(span.end_time_unix_nano - span.start_time_unix_nano, 1000) AS duration_us,
    span.attributes.value.int_value[indexOf(span.attributes.key, 'tokentrail.step')] AS step
FROM
(
    SELECT arrayJoin(tupleElement(arrayJoin(tupleElement(arrayJoin(resource_spans), 'scope_spans')), 'spans')) AS span
    FROM otlp_traces
)
WHERE span.name = 'tokentrail.token';

CREATE MATERIALIZED VIEW vllm_cold_starts TO cold_starts
(
    `start` DateTime64(9, 'UTC'),
    `duration_ns` UInt64,
    `trace_id` FixedString(16),
    `span_id` FixedString(8),
    `parent_span_id` String,
    `engine` String,
    `service` String,
    `instance` String,
    `variant` String,
    `model` String,
    `phase` String,
    `status` String,
    `error_type` String,
    `segment` String
)
COMMENT 'd4818b6e92e80c81'
AS SELECT
    start,
    duration_ns,
    trace_id,
    span_id,
    parent_span_id,
    'vllm' AS engine,
    service,
    instance,
    variant,
    if(startsWith(service, 'unknown_service'), '', service) AS model,
    if(name = 'Overall Loading', '', trimBoth(replaceRegexpAll(lower(name), '[^a-z0-9]+', '_'), '_')) AS phase,
    if(status_code = 2, 'error', 'ok') AS status,
    extract(status_message, '^([A-Za-z_][A-Za-z0-9_.]*): ') AS error_type,
    getSetting('insert_deduplication_token') AS segment
FROM vllm_spans
WHERE claim = 'vllm.cold_start';

CREATE MATERIALIZED VIEW vllm_phases TO phases
(
    `minute` DateTime('UTC'),
    `trace_id` FixedString(16),
    `request_span_id` FixedString(8),
    `start` DateTime64(9, 'UTC'),
    `name` String,
    `duration_ns` UInt64
)
COMMENT 'd341eccb4e3e16f6'
AS WITH
    toUInt64(round(least(number['gen_ai.latency.time_in_model_prefill'], 10000000.) * 1000000000.)) AS prefill,
    toUInt64(round(least(number['gen_ai.latency.time_in_model_decode'], 10000000.) * 1000000000.)) AS decode,
    toUInt64((greatest(toUInt64(round(least(number['gen_ai.latency.e2e'], 10000000.) * 1000000000.)), prefill + decode) - prefill) - decode) AS queue,
    arrayJoin([('queued', toUInt64(0), queue), ('prefill', queue, prefill), ('decode', queue + prefill, decode)]) AS phase
SELECT
    toStartOfMinute(span.start + toIntervalNanosecond((phase.2) + (phase.3))) AS minute,
    trace_id,
    span_id AS request_span_id,
    span.start + toIntervalNanosecond(phase.2) AS start,
    phase.1 AS name,
    phase.3 AS duration_ns
FROM vllm_spans AS span
WHERE (claim = 'vllm.request') AND mapContains(number, 'gen_ai.latency.time_in_model_prefill') AND ((phase.3) > 0);

CREATE MATERIALIZED VIEW vllm_requests TO requests
(
    `end` DateTime64(9, 'UTC'),
    `start` DateTime64(9, 'UTC'),
    `trace_id` FixedString(16),
    `span_id` FixedString(8),
    `parent_span_id` String,
    `request_id` String,
    `engine` String,
    `service` String,
    `instance` String,
    `variant` String,
    `vantage` String,
    `operation` String,
    `model` String,
    `tenant` String,
    `slo_class` String,
    `status` String,
    `error_type` String,
    `input_tokens` Float64,
    `output_tokens` UInt32,
    `cached_tokens` Float64,
    `ttft_ns` Nullable(UInt64),
    `tpot_ns` Nullable(Float64),
    `e2e_ns` UInt64,
    `queue_ns` Nullable(Int64),
    `prefill_ns` Nullable(UInt64),
    `decode_ns` Nullable(UInt64),
    `segment` String,
    `ingested_at` DateTime64(3, 'UTC')
)
COMMENT 'e12b32d323502aab'
AS WITH
    toUInt64(round(least(number['gen_ai.latency.e2e'], 10000000.) * 1000000000.)) AS whole_ns,
    mapContains(number, 'gen_ai.latency.time_to_first_token') AS has_token,
    toUInt64(round(least(number['gen_ai.latency.time_to_first_token'], 10000000.) * 1000000000.)) AS first_ns,
    mapContains(number, 'gen_ai.latency.time_in_model_prefill') AS has_phases,
    toUInt64(round(least(number['gen_ai.latency.time_in_model_prefill'], 10000000.) * 1000000000.)) AS prefill,
    toUInt64(round(least(number['gen_ai.latency.time_in_model_decode'], 10000000.) * 1000000000.)) AS decode,
    toUInt32(if(mapContains(number, 'gen_ai.usage.output_tokens'), number['gen_ai.usage.output_tokens'], number['gen_ai.usage.completion_tokens'])) AS n
SELECT
    start + toIntervalNanosecond(whole_ns) AS end,
    start,
    trace_id,
    span_id,
    parent_span_id,
    text['gen_ai.request.id'] AS request_id,
    'vllm' AS engine,
    service,
    instance,
    variant,
    'server' AS vantage,
    text['gen_ai.operation.name'] AS operation,
    multiIf((text['gen_ai.response.model']) != '', text['gen_ai.response.model'], (text['gen_ai.request.model']) != '', text['gen_ai.request.model'], startsWith(service, 'unknown_service'), '', service) AS model,
    text['tokentrail.tenant'] AS tenant,
    text['tokentrail.slo_class'] AS slo_class,
    if(status_code = 2, 'error', 'ok') AS status,
    if((text['error.type']) != '', text['error.type'], extract(status_message, '^([A-Za-z_][A-Za-z0-9_.]*): ')) AS error_type,
    if(mapContains(number, 'gen_ai.usage.input_tokens'), number['gen_ai.usage.input_tokens'], number['gen_ai.usage.prompt_tokens']) AS input_tokens,
    n AS output_tokens,
    number['gen_ai.usage.cache_read.input_tokens'] AS cached_tokens,
    if(has_token, first_ns, NULL) AS ttft_ns,
    if(has_token AND (n > 1) AND (whole_ns >= first_ns), (whole_ns - first_ns) / (n - 1), NULL) AS tpot_ns,
    whole_ns AS e2e_ns,
    if(has_phases, (greatest(whole_ns, prefill + decode) - prefill) - decode, NULL) AS queue_ns,
    if(has_phases, prefill, NULL) AS prefill_ns,
    if(has_phases, decode, NULL) AS decode_ns,
    getSetting('insert_deduplication_token') AS segment,
    now64(3, 'UTC') AS ingested_at
FROM vllm_spans
WHERE claim = 'vllm.request';

CREATE MATERIALIZED VIEW vllm_route TO vllm_spans
(
    `claim` String,
    `resource` Map(String, String),
    `service` String,
    `instance` String,
    `variant` String,
    `scope` String,
    `trace_id` FixedString(16),
    `span_id` FixedString(8),
    `parent_span_id` String,
    `name` String,
    `kind` Int32,
    `start` DateTime64(9, 'UTC'),
    `end` DateTime64(9, 'UTC'),
    `duration_ns` UInt64,
    `text` Map(String, String),
    `number` Map(String, Float64),
    `attributes` Array(Tuple(
        key String,
        value Tuple(
            value Enum8('none' = 0, 'string_value' = 1, 'bool_value' = 2, 'int_value' = 3, 'double_value' = 4, 'array_value' = 5, 'bytes_value' = 7),
            string_value String,
            bool_value Bool,
            int_value Int64,
            double_value Float64,
            bytes_value String,
            array_value Tuple(`values` Array(Tuple(
                string_value String,
                bool_value Bool,
                int_value Int64,
                double_value Float64)))))),
    `events` Array(Tuple(
        time_unix_nano UInt64,
        name String,
        attributes Array(Tuple(
            key String,
            value Tuple(
                value Enum8('none' = 0, 'string_value' = 1, 'bool_value' = 2, 'int_value' = 3, 'double_value' = 4, 'array_value' = 5, 'bytes_value' = 7),
                string_value String,
                bool_value Bool,
                int_value Int64,
                double_value Float64))))),
    `status_code` Int32,
    `status_message` String
)
COMMENT '25db270722595dd5'
AS SELECT *
FROM flat_spans
WHERE startsWith(claim, 'vllm.');

