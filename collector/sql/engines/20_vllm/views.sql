-- vLLM (recorded with 0.32). Its latencies are differences of a monotonic clock in seconds; its span's start is wall clock.
-- queue_ns is the time outside inference. vLLM's own time_in_queue begins when the engine core receives the request, but
-- the request has waited before that too, and TTFT contains both waits. So queue + prefill + decode = E2E.

CREATE TABLE IF NOT EXISTS vllm_spans AS flat_spans ENGINE = Null;
CREATE OR REPLACE MATERIALIZED VIEW vllm_route TO vllm_spans AS SELECT * FROM flat_spans WHERE startsWith(claim, 'vllm.');

CREATE OR REPLACE MATERIALIZED VIEW vllm_requests TO new_requests AS
WITH
    $nanoseconds AS nanoseconds,
    $reported AS reported,
    $counted AS counted,
    ifNull(nanoseconds(reported('gen_ai.latency.e2e'), $longest_e2e), duration_ns) AS e2e,
    nanoseconds(reported('gen_ai.latency.time_to_first_token'), e2e) AS first_ns,
    nanoseconds(reported('gen_ai.latency.time_in_model_prefill'), e2e) AS prefill,
    nanoseconds(reported('gen_ai.latency.time_in_model_decode'), e2e) AS decode,
    nanoseconds(reported('kv_transfer'), e2e) AS transfer,
    prefill + ifNull(transfer, 0) + decode AS known,
    $unless_more AS unless_more,
    ifNull(counted('gen_ai.usage.input_tokens'), counted('gen_ai.usage.prompt_tokens')) AS input,
    counted('gen_ai.usage.cache_read.input_tokens') AS cached,
    ifNull(counted('gen_ai.usage.output_tokens'), counted('gen_ai.usage.completion_tokens')) AS n
SELECT
    start + toIntervalNanosecond(e2e) AS end,
    start, trace_id, span_id, parent_span_id,
    text['gen_ai.request.id'] AS request_id,
    'vllm' AS engine,
    service, instance, $process_tenant AS process_tenant, variant,
    'server' AS vantage,
    text['gen_ai.operation.name'] AS operation,
    multiIf(text['gen_ai.response.model'] != '', text['gen_ai.response.model'],
            text['gen_ai.request.model'] != '', text['gen_ai.request.model'],
            startsWith(service, 'unknown_service'), '', service) AS model,
    $tenant AS tenant,
    text['tokentrail.slo_class'] AS slo_class,
    $labels AS labels,
    if(status_code = 2, 'error', 'ok') AS status,
    if(text['error.type'] != '', text['error.type'], $exception_in_status) AS error_type,
    unless_more(input, cached, input) AS input_tokens,
    n AS output_tokens,
    unless_more(cached, cached, input) AS cached_tokens,
    first_ns AS ttft_ns,
    if(n > 1, (e2e - first_ns) / (n - 1), NULL) AS tpot_ns,
    e2e AS e2e_ns,
    greatest(e2e, known) - known AS queue_ns,
    prefill AS prefill_ns,
    decode AS decode_ns,
    transfer AS kv_transfer_ns,
    getSetting('insert_deduplication_token') AS segment,
    now64(3, 'UTC') AS ingested_at,
    $weight AS weight
FROM vllm_spans
WHERE claim = 'vllm.request';

CREATE OR REPLACE MATERIALIZED VIEW vllm_phases TO phases AS
SELECT
    toStartOfMinute(arrival + toIntervalNanosecond(phase.2 + phase.3)) AS minute,
    trace_id,
    span_id AS request_span_id,
    process_tenant,
    arrival + toIntervalNanosecond(phase.2) AS start,
    phase.1 AS name,
    phase.3 AS duration_ns
FROM
(
    WITH
        $nanoseconds AS nanoseconds,
        $reported AS reported,
        ifNull(nanoseconds(reported('gen_ai.latency.e2e'), $longest_e2e), duration_ns) AS e2e
    SELECT
        trace_id, span_id, $process_tenant AS process_tenant,
        start AS arrival,
        nanoseconds(reported('gen_ai.latency.time_in_model_prefill'), e2e) AS known_prefill,
        nanoseconds(reported('gen_ai.latency.time_in_model_decode'), e2e) AS known_decode,
        assumeNotNull(known_prefill) AS prefill,
        assumeNotNull(known_decode) AS decode,
        ifNull(nanoseconds(reported('kv_transfer'), e2e), 0) AS transfer,
        toUInt64(greatest(e2e, prefill + transfer + decode) - prefill - transfer - decode) AS queue
    FROM vllm_spans
    WHERE claim = 'vllm.request' AND known_prefill IS NOT NULL AND known_decode IS NOT NULL
)
ARRAY JOIN [('queued', toUInt64(0), queue), ('prefill', queue, prefill), ('kv_transfer', queue + prefill, transfer),
            ('decode', queue + prefill + transfer, decode)] AS phase
WHERE phase.3 > 0;

-- A start-up is one trace with spans of several processes. Its span 'Load weights' becomes the phase load_weights, the name
-- that tokentrail's own cold starts use.
CREATE OR REPLACE MATERIALIZED VIEW vllm_cold_starts TO cold_starts AS
SELECT
    start, duration_ns, trace_id, span_id, parent_span_id,
    'vllm' AS engine,
    service, instance, $process_tenant AS process_tenant, variant,
    if(startsWith(service, 'unknown_service'), '', service) AS model,
    if(name = 'Overall Loading', '', trim(BOTH '_' FROM replaceRegexpAll(lower(name), '[^a-z0-9]+', '_'))) AS phase,
    if(status_code = 2, 'error', 'ok') AS status,
    $exception_in_status AS error_type,
    getSetting('insert_deduplication_token') AS segment
FROM vllm_spans
WHERE claim = 'vllm.cold_start';

-- Disaggregated. The prefill engine answers with one token, which the proxy throws away, and the decode engine with all. Both spans have
-- one request id, since the proxy hands on one x-request-id. So the decode engine's span waits as a request, and the prefill engine's as
-- a part that is linked by the id.
CREATE TABLE IF NOT EXISTS vllm_disaggregated_spans AS flat_spans ENGINE = Null;
CREATE OR REPLACE MATERIALIZED VIEW vllm_disaggregated_route TO vllm_disaggregated_spans AS
SELECT * FROM rare_spans WHERE startsWith(claim, 'vllm_disaggregated.');

CREATE TABLE IF NOT EXISTS vllm_disaggregated_linked
(
    $held_columns,
    link FixedString(16)                                        -- zeros: the span names no request
)
ENGINE = Null;
CREATE OR REPLACE MATERIALIZED VIEW vllm_disaggregated_link TO vllm_disaggregated_linked AS
SELECT
    $held_span,
    if(text['gen_ai.request.id'] = '', toFixedString('', 16), MD5(concat(tenant, '|', text['gen_ai.request.id']))) AS link
FROM vllm_disaggregated_spans AS spans_to_hold;

CREATE OR REPLACE MATERIALIZED VIEW vllm_disaggregated_hold_requests TO held_requests AS
SELECT *, 0 AS is_log, getSetting('insert_deduplication_token') AS segment, now('UTC') AS arrived
FROM vllm_disaggregated_linked
WHERE claim = 'vllm_disaggregated.request';

CREATE OR REPLACE MATERIALIZED VIEW vllm_disaggregated_hold_prefills TO held_spans AS
SELECT * EXCEPT (link) REPLACE (link AS trace_id, '' AS parent_span_id), 1 AS is_leaf, now('UTC') AS arrived
FROM vllm_disaggregated_linked
WHERE claim = 'vllm_disaggregated.prefill';

-- The two spans become one that begins with the prefill engine and ends with the decode engine:
--
--     prefill engine   queued | prefill |
--     decode engine                        waits for the KV cache | first token … last token
--     request          queued | prefill |       kv_transfer       |          decode
--
-- vLLM does not tell the transfer, so `kv_transfer` is all between: the proxy, the transfer and the decode engine's queue. A request
-- without a prefill engine's span was prefilled by the decode engine. Of several (a request id that is used again, an attempt that
-- failed) the last one counts, and none that ended 480 s before: vLLM's NIXL connector frees its blocks then.
CREATE TABLE IF NOT EXISTS vllm_disaggregated_joined AS joined_spans ENGINE = Null;
CREATE OR REPLACE MATERIALIZED VIEW vllm_disaggregated_route_joined TO vllm_disaggregated_joined AS
SELECT * FROM joined_spans WHERE claim = 'vllm_disaggregated.request';

CREATE OR REPLACE MATERIALIZED VIEW vllm_disaggregated_requests TO vllm_spans AS
SELECT
    'vllm.request' AS claim,
    map('tokentrail.tenant', text['process_tenant']) AS resource,
    service, instance, variant, trace_id, span_id, parent_span_id, text, status_code, status_message,
    arrival AS start,
    until_end AS duration_ns,
    mapUpdate(told, latencies) AS number
FROM
(
    WITH
        $reported AS reported,
        arrayLast(part -> part.end <= end AND part.end >= start - INTERVAL 480 SECOND, parts) AS prefiller,
        prefiller.claim != '' AS is_divided,
        (key -> if(mapContains(prefiller.number, key), prefiller.number[key], nan)) AS prefiller_reported,
        (time -> dateDiff('nanosecond', arrival, time) / 1e9) AS from,
        from(start) + reported('gen_ai.latency.e2e') AS ended,
        from(prefiller.start) + prefiller_reported('gen_ai.latency.e2e') - prefiller_reported('gen_ai.latency.time_in_model_decode') AS prefilled,
        ended - reported('gen_ai.latency.time_in_model_prefill') - reported('gen_ai.latency.time_in_model_decode') AS scheduled,
        if(scheduled < prefilled, prefilled, scheduled) AS transferred          -- the engines' clocks may differ
    SELECT
        * EXCEPT (parts, number, start, duration_ns),
        if(is_divided, least(start, prefiller.start), start) AS arrival,
        toUInt64(dateDiff('nanosecond', arrival, end)) AS until_end,
        number AS told,
        CAST(if(is_divided, map(
            'gen_ai.latency.time_to_first_token', from(start) + reported('gen_ai.latency.time_to_first_token'),
            'gen_ai.latency.e2e', ended,
            'gen_ai.latency.time_in_model_prefill', prefiller_reported('gen_ai.latency.time_in_model_prefill'),
            'kv_transfer', transferred - prefilled,
            'gen_ai.latency.time_in_model_decode', ended - transferred), map()), 'Map(LowCardinality(String), Float64)') AS latencies
    FROM vllm_disaggregated_joined
);
