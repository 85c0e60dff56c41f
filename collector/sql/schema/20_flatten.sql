-- One row per span that is not a token (tokens are many and take their own way, engines/tokentrail.sql), with its
-- attributes as maps and the name of the view that claims it. A span that nobody claims is kept whole in `spans`.

CREATE TABLE IF NOT EXISTS flat_spans
(
    claim           LowCardinality(String),
    service         String,
    instance        String,
    variant         String,
    resource        Map(String, String),
    scope           String,
    trace_id        FixedString(16),
    span_id         FixedString(8),
    parent_span_id  String,
    name            String,
    kind            UInt8,                  -- 1 internal, 2 server, 3 client, 4 producer, 5 consumer
    start           DateTime64(9, 'UTC'),
    end             DateTime64(9, 'UTC'),
    duration_ns     UInt64,
    text            Map(String, String),    -- every attribute, as text; arrays as JSON
    number          Map(String, Float64),   -- integers and doubles; others, negative and not finite ones read 0
    status_code     UInt8,                  -- 2 error
    status_message  String,
    events          Array(Tuple(time DateTime64(9, 'UTC'), name String, attributes Map(String, String)))
)
ENGINE = Null;

CREATE OR REPLACE MATERIALIZED VIEW flatten_spans TO flat_spans AS
WITH
    span.attributes.key AS keys,
    span.attributes.value AS vals,
    CAST((keys, arrayMap(v -> multiIf(
        v.value = 'string_value', v.string_value,
        v.value = 'int_value', toString(v.int_value),
        v.value = 'double_value', toString(v.double_value),
        v.value = 'bool_value', if(v.bool_value, 'true', 'false'),
        v.value = 'bytes_value', base64Encode(v.bytes_value),
        v.value = 'array_value' AND notEmpty(v.array_value.values.string_value[1]), toJSONString(v.array_value.values.string_value),
        v.value = 'array_value', toJSONString(arrayMap((i, d) -> i + d, v.array_value.values.int_value, v.array_value.values.double_value)),
        ''), vals)), 'Map(String, String)') AS texts,
    span.name AS span_name
SELECT
    multiIf(
        span_name = 'tokentrail.phase', 'tokentrail.phase',
        span_name = 'tokentrail.step', 'tokentrail.step',
        span_name = 'tokentrail.request.open', 'tokentrail.request.open',
        startsWith(span_name, 'tokentrail.kv.'), 'tokentrail.kv',
        span_name = 'tokentrail.cold_start' OR startsWith(span_name, 'tokentrail.cold_start.'), 'tokentrail.cold_start',
        scope_name = 'tokentrail' AND has(keys, 'gen_ai.operation.name'), 'tokentrail.request',
        startsWith(scope_name, 'vllm.') AND span_name = 'llm_request' AND has(keys, 'gen_ai.latency.e2e'), 'vllm.request',
        startsWith(scope_name, 'vllm.') AND span.kind = 1 AND has(keys, 'code.function'), 'vllm.cold_start',
        texts['gen_ai.operation.name'] IN ('chat', 'text_completion', 'generate_content'), 'genai.request',
        '') AS claim,
    service,
    instance,
    variant,
    resource,
    scope_name AS scope,
    span.trace_id AS trace_id,
    span.span_id AS span_id,
    span.parent_span_id AS parent_span_id,
    span_name AS name,
    span.kind AS kind,
    fromUnixTimestamp64Nano(toInt64(span.start_time_unix_nano), 'UTC') AS start,
    fromUnixTimestamp64Nano(toInt64(span.end_time_unix_nano), 'UTC') AS end,
    span.end_time_unix_nano - span.start_time_unix_nano AS duration_ns,
    texts AS text,
    CAST((keys, arrayMap(v -> if(isFinite(v.double_value), greatest(v.int_value + v.double_value, 0), 0), vals)), 'Map(String, Float64)') AS number,
    span.status.code AS status_code,
    span.status.message AS status_message,
    arrayMap(e -> (
        fromUnixTimestamp64Nano(toInt64(e.time_unix_nano), 'UTC'),
        e.name,
        CAST((e.attributes.key, arrayMap(v -> multiIf(
            v.value = 'string_value', v.string_value,
            v.value = 'int_value', toString(v.int_value),
            v.value = 'double_value', toString(v.double_value),
            v.value = 'bool_value', if(v.bool_value, 'true', 'false'),
            ''), e.attributes.value)), 'Map(String, String)')), span.events) AS events
FROM
(
    SELECT
        resource,
        resource['service.name'] AS service,
        if(resource['service.instance.id'] != '', resource['service.instance.id'], resource['host.name']) AS instance,
        resource['tokentrail.variant'] AS variant,
        scoped.scope.name AS scope_name,
        arrayJoin(arrayFilter(s -> s.name != 'tokentrail.token', scoped.spans)) AS span
    FROM
    (
        SELECT
            CAST((resource_span.resource.attributes.key, arrayMap(v -> multiIf(
                v.value = 'string_value', v.string_value,
                v.value = 'int_value', toString(v.int_value),
                v.value = 'double_value', toString(v.double_value),
                v.value = 'bool_value', if(v.bool_value, 'true', 'false'),
                ''), resource_span.resource.attributes.value)), 'Map(String, String)') AS resource,
            arrayJoin(resource_span.scope_spans) AS scoped
        FROM (SELECT arrayJoin(resource_spans) AS resource_span FROM otlp_traces)
    )
);

CREATE OR REPLACE MATERIALIZED VIEW unclaimed_spans TO spans AS
SELECT start, duration_ns, trace_id, span_id, parent_span_id, service, instance, scope, name, kind, status_code,
       status_message, text AS attributes, resource, events
FROM flat_spans
WHERE claim = '';
