-- NVIDIA Dynamo (recorded with 1.6.1): the frontend's `http-request` its parts, and its request-trace log record.
-- Dynamo sends its numbers as strings, in ms. `request_id` is a UUID, by which a log record finds its span; a request whose trace
-- was not sampled has the log record alone.

-- Records of the request trace. Their values are a JSON document; a record of another kind is not read.
CREATE TABLE IF NOT EXISTS dynamo_logs
(
    trace_id FixedString(16), resource Map(String, String), text Map(String, String), time_unix_nano UInt64
)
ENGINE = Null;
CREATE OR REPLACE MATERIALIZED VIEW dynamo_flatten_logs TO dynamo_logs AS
WITH CAST((record.attributes.key, record.attributes.value.string_value), 'Map(String, String)') AS all_text
SELECT
    resource,
    if(record.time_unix_nano = 0, record.observed_time_unix_nano, record.time_unix_nano) AS time_unix_nano,
    map('request_id', all_text['rid'], 'payload', all_text['payload']) AS text,
    $uuid AS trace_id
FROM
(
    SELECT
        CAST((resource_log.resource.attributes.key, resource_log.resource.attributes.value.string_value), 'Map(String, String)') AS resource,
        arrayJoin(scoped.log_records) AS record
    FROM
    (
        SELECT resource_log, arrayJoin(resource_log.scope_logs) AS scoped
        FROM (SELECT arrayJoin(resource_logs) AS resource_log FROM otlp_logs)
    )
    WHERE scoped.scope.name = 'dynamo.request_trace'
)
WHERE all_text['event_type'] = 'request_end' AND trace_id != toFixedString('', 16);

-- A log record as a span: it ends at the record's time.
CREATE TABLE IF NOT EXISTS dynamo_log_spans
(
    $held_columns
)
ENGINE = Null;
CREATE OR REPLACE MATERIALIZED VIEW dynamo_read_logs TO dynamo_log_spans AS
WITH
    ['input_tokens', 'output_tokens', 'cached_tokens', 'ttft_ms', 'total_time_ms'] AS keys,
    (key -> JSONExtract(dynamo_logs.text['payload'], 'request', key, 'Nullable(Float64)')) AS value_of,
    toUInt64(least(greatest(ifNull(value_of('total_time_ms'), 0), 0) * 1e6, $longest_ns)) AS total_ns
SELECT
    'dynamo.held.request' AS claim,
    trace_id,
    substring(trace_id, 9) AS span_id,
    resource['service.name'] AS service,
    resource['service.instance.id'] AS instance,
    resource['tokentrail.variant'] AS variant,
    resource['tokentrail.tenant'] AS tenant,
    end - toIntervalNanosecond(duration_ns) AS start,
    fromUnixTimestamp64Nano(time_unix_nano, 'UTC') AS end,
    least(total_ns, time_unix_nano) AS duration_ns,
    map('process_tenant', $process_tenant, 'request_id', dynamo_logs.text['request_id'], 'workers',
        if(JSONExtractRaw(dynamo_logs.text['payload'], 'request', 'worker', 'prefill_worker_id') = JSONExtractRaw(dynamo_logs.text['payload'], 'request', 'worker', 'decode_worker_id'),
            'one', 'several')) AS text,
    mapFilter((_, value) -> value BETWEEN 0 AND 1e18,
        CAST((keys, arrayMap(key -> ifNull(value_of(key), nan), keys)), 'Map(String, Float64)')) AS number
FROM dynamo_logs;

-- A record that does not say how long its request took is no request. It is a part all the same.
CREATE OR REPLACE MATERIALIZED VIEW dynamo_hold_log_requests TO held_requests AS
SELECT *, trace_id AS link, 1 AS is_log, getSetting('insert_deduplication_token') AS segment, now('UTC') AS arrived
FROM dynamo_log_spans
WHERE mapContains(number, 'total_time_ms') AND number['total_time_ms'] * 1e6 <= $longest_ns;

CREATE OR REPLACE MATERIALIZED VIEW dynamo_hold_logs TO held_spans AS
SELECT * EXCEPT (claim), 'dynamo.held.log' AS claim, 1 AS is_leaf, now('UTC') AS arrived
FROM dynamo_log_spans;

CREATE TABLE IF NOT EXISTS dynamo_joined AS joined_spans ENGINE = Null;
CREATE OR REPLACE MATERIALIZED VIEW dynamo_route_joined TO dynamo_joined AS SELECT * FROM joined_spans WHERE claim = 'dynamo.held.request';

CREATE OR REPLACE MATERIALIZED VIEW dynamo_requests TO new_requests AS
WITH
    $nanoseconds AS nanoseconds,
    (key -> toFloat64OrNull(text[key])) AS sent,
    (key -> if(mapContains(log.number, key), log.number[key], NULL)) AS logged,
    -- A record's time to first token is that of the prefill worker. If another worker decodes, the client waits longer.
    text['workers'] = 'several' OR log.text['workers'] = 'several' OR arrayExists(route -> route.text['phase'] = 'Prefill', routes) AS divided,
    toUInt64(greatest(0, dateDiff('nanosecond', start, streaming[1].start))) AS streaming_ns,
    multiIf(
        notEmpty(streaming) AND streaming_ns <= whole_ns, streaming_ns,
        sent('ttft_ms') IS NOT NULL, nanoseconds(sent('ttft_ms') / 1e3, whole_ns),
        divided, NULL,
        nanoseconds(logged('ttft_ms') / 1e3, whole_ns)) AS first_ns,
    -- The span of a streamed text completion says 0 input tokens.
    accurateCastOrNull(ifNull(nullIf(sent('input_tokens'), 0), logged('input_tokens')), 'UInt32') AS prompt,
    accurateCastOrNull(ifNull(sent('output_tokens'), logged('output_tokens')), 'UInt32') AS n,
    $unless_more AS unless_more,
    accurateCastOrNull(logged('cached_tokens'), 'UInt32') AS cached,
    arrayFirst(value -> match(value, '^[1-5][0-9][0-9]$$'), arrayMap(event -> event.text['status'], happened)) AS http_status,
    arrayFirst(outcome -> outcome != '', [text['request.outcome'], lifecycle.text['dynamo.request.terminal.outcome'],
        if(sent('ttft_ms') IS NULL, arrayElement(routes, -1).text['request.outcome'], '')]) AS outcome,
    -- With lifecycle tracing, the span of a request that its client left before the answer ends with the last that was done in it, which may
    -- be its first millisecond. The lifecycle's ends when the client left.
    toUInt64(greatest(toInt64(duration_ns), dateDiff('nanosecond', start, lifecycle.end))) AS whole_ns
SELECT
    start + toIntervalNanosecond(whole_ns) AS end, start, trace_id, span_id, parent_span_id,
    concat(multiIf(endsWith(text['uri'], '/chat/completions'), 'chatcmpl-', endsWith(text['uri'], '/completions'), 'cmpl-', ''),
        text['request_id']) AS request_id,
    'dynamo' AS engine,
    service, instance, text['process_tenant'] AS process_tenant, variant,
    'server' AS vantage,
    multiIf(text['uri'] = '', '', endsWith(text['uri'], '/completions') AND NOT endsWith(text['uri'], '/chat/completions'), 'text_completion',
        endsWith(text['uri'], '/embeddings'), 'embeddings', 'chat') AS operation,
    if(text['model'] != '', text['model'], arrayFirst(value -> value != '', arrayMap(event -> event.text['model'], happened))) AS model,
    tenant,
    text['tokentrail.slo_class'] AS slo_class,
    $held_labels AS labels,
    multiIf(status_code = 2 OR outcome IN ('error', 'failed', 'rejected') OR http_status >= '400', 'error', outcome = 'cancelled', 'cancelled', 'ok') AS status,
    if(status = 'error', if(http_status >= '400', http_status, $exception_in_status), '') AS error_type,
    unless_more(prompt, cached, prompt) AS input_tokens,
    n AS output_tokens,
    unless_more(cached, cached, prompt) AS cached_tokens,
    first_ns AS ttft_ns,
    if(n > 1, (whole_ns - first_ns) / (n - 1), NULL) AS tpot_ns,
    whole_ns AS e2e_ns,
    whole_ns - first_ns AS decode_ns,
    getSetting('insert_deduplication_token') AS segment,
    now64(3, 'UTC') AS ingested_at,
    $weight AS weight
FROM
(
    WITH (claim_of_part -> arrayFilter(part -> part.claim = claim_of_part, parts)) AS parts_with
    SELECT
        * EXCEPT (parts),
        parts_with('dynamo.held.log')[1] AS log,
        parts_with('dynamo.held.lifecycle')[1] AS lifecycle,
        parts_with('dynamo.held.route') AS routes,
        parts_with('dynamo.held.streaming') AS streaming,
        -- The lifecycle's span, and those of /v1/completions, have events that `http-request` has without.
        arrayFlatten(arrayPushFront(
            arrayMap(part -> part.events, arrayFilter(part -> part.claim IN ('dynamo.held.lifecycle', 'dynamo.held.inner'), parts)),
            dynamo_joined.events)) AS happened
    FROM dynamo_joined
);
