-- One row per span that is not a token, with its claim: a name that the engine's views filter by. The engines' claim.sql
-- files are inserted into the CASE in the order of their folders, and the first condition that is met decides. A condition
-- may read `span` (otlp_traces.proto has its fields), `scope`, `resource`, `text` and `number`. A span without a claim is
-- kept in `spans` with its attributes, but for prompts, answers and headers (parts/content_keys.sql). Token spans are many, so their view (engines/10_tokentrail/views.sql) reads the
-- landing table itself.
--
-- ClickHouse analyses a view's SELECT at every insert whose block reaches it, about 0.2 ms a function. So this view does
-- only the work that all views need, and each engine has a Null table of its own: an insert without its spans sends
-- no block there, and the engine's views are not analysed.

CREATE TABLE IF NOT EXISTS flat_spans
(
    claim           String,
    resource        Map(String, String),    -- attributes of type string
    service         String,
    instance        String,
    variant         String,
    scope           String,
    trace_id        FixedString(16),
    span_id         FixedString(8),
    parent_span_id  String,
    name            String,
    kind            Int32,                  -- 1 internal, 2 server, 3 client, 4 producer, 5 consumer
    start           DateTime64(9, 'UTC'),
    end             DateTime64(9, 'UTC'),
    duration_ns     UInt64,
    text            Map(String, String),    -- attributes of type string
    number          Map(String, Float64),   -- integers, doubles, booleans and numbers as text within 0…1e18; any other value is NaN
    attributes      $span_attributes,
    events          $span_events,
    status_code     Int32,                  -- 2 error
    status_message  String
)
ENGINE = Null;

CREATE OR REPLACE MATERIALIZED VIEW flatten_spans TO flat_spans AS
SELECT
    CASE
        $claims
        ELSE ''
    END AS claim,
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
    $text AS text,
    -- One array for each field: a function over the whole values would copy all of their fields, 3 µs a span. Micrometer, and with it
    -- Spring AI, sends each number as text.
    CAST((span.attributes.key, arrayMap(
        (field, int, double, bool, string) -> if(
            field IN ('bool_value', 'int_value', 'double_value', 'string_value')
                AND (int + double + bool + if(field = 'string_value', toFloat64OrNull(string), 0) AS value) BETWEEN 0 AND 1e18,
            assumeNotNull(value), nan),
        span.attributes.value.value, span.attributes.value.int_value, span.attributes.value.double_value,
        span.attributes.value.bool_value, span.attributes.value.string_value)), 'Map(String, Float64)') AS number,
    span.attributes AS attributes,
    span.events AS events,
    span.status.code AS status_code,
    span.status.message AS status_message
FROM
(
    SELECT
        resource,
        scoped.scope.name AS scope,
        arrayJoin(scoped.spans) AS span
    FROM
    (
        SELECT
            CAST((resource_span.resource.attributes.key, resource_span.resource.attributes.value.string_value),
                 'Map(String, String)') AS resource,
            arrayJoin(resource_span.scope_spans) AS scoped
        FROM (SELECT arrayJoin(resource_spans) AS resource_span FROM otlp_traces)
    )
)
WHERE span.name != 'tokentrail.token';

-- Each route costs an insert 2 ms and each row 0.5 µs, whether it leads the row on or not. So only the engines whose spans are
-- many read `flat_spans`; the routes of all others read `rare_spans`, which an insert without their spans does not reach.
CREATE TABLE IF NOT EXISTS rare_spans AS flat_spans ENGINE = Null;
CREATE OR REPLACE MATERIALIZED VIEW route_rare TO rare_spans AS
SELECT * FROM flat_spans
WHERE splitByChar('.', claim)[1] NOT IN ('', 'tokentrail', 'vllm', 'genai')
    -- The route of a framework's span must see the client's span below it, and that of OpenInference's spans of the anthropic client (zeros) the
    -- client's own beside them. Two subqueries would cost each insert 10 ms more than one.
    OR claim = 'genai.request'
        AND if(scope = 'com.anthropic.sdk.python', toFixedString('', 8), toFixedString(parent_span_id, 8)) IN ($framework_spans);

CREATE TABLE IF NOT EXISTS unclaimed_spans AS flat_spans ENGINE = Null;
CREATE OR REPLACE MATERIALIZED VIEW route_unclaimed TO unclaimed_spans AS SELECT * FROM flat_spans WHERE claim = '';

CREATE OR REPLACE MATERIALIZED VIEW keep_unclaimed TO spans AS
WITH
    (v -> $value_as_text) AS as_text,
    arrayFilter(attribute -> NOT match(attribute.key, '$content_keys'), unclaimed_spans.attributes) AS kept
SELECT
    start, duration_ns, trace_id, span_id, parent_span_id, service, instance, scope, name, kind, status_code, status_message,
    CAST((kept.key, arrayMap(v -> multiIf(
        v.value = 'array_value', toJSONString(arrayMap(
            item -> if(item.string_value != '', item.string_value, toString(item.int_value + item.double_value)),
            v.array_value.values)),
        v.value = 'bytes_value', base64Encode(v.bytes_value),
        as_text(v)), kept.value)), 'Map(String, String)') AS attributes,
    resource,
    arrayMap(e -> (fromUnixTimestamp64Nano(e.time_unix_nano, 'UTC'), e.name,
        mapFilter((key, _) -> NOT match(key, '$content_keys'),
            CAST((e.attributes.key, arrayMap(v -> as_text(v), e.attributes.value)), 'Map(String, String)'))), events) AS events
FROM unclaimed_spans;
