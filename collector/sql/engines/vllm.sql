-- vLLM (seen live: 0.32). Its latencies are monotonic differences in seconds, its span's start is wall clock.
-- queue_ns is everything that is not inference: time_in_queue starts when the engine core took the request in, and a
-- request waits before that too; a promise about TTFT covers both. So queue + prefill + decode = E2E.

CREATE TABLE IF NOT EXISTS vllm_spans AS flat_spans ENGINE = Null;
CREATE OR REPLACE MATERIALIZED VIEW vllm_route TO vllm_spans AS SELECT * FROM flat_spans WHERE startsWith(claim, 'vllm.');

CREATE OR REPLACE MATERIALIZED VIEW vllm_requests TO requests AS
WITH
    toUInt64(round(least(number['gen_ai.latency.e2e'], 1e7) * 1e9)) AS whole_ns,     -- `end` must stay a date
    mapContains(number, 'gen_ai.latency.time_to_first_token') AS has_token,
    toUInt64(round(least(number['gen_ai.latency.time_to_first_token'], 1e7) * 1e9)) AS first_ns,
    mapContains(number, 'gen_ai.latency.time_in_model_prefill') AS has_phases,
    toUInt64(round(least(number['gen_ai.latency.time_in_model_prefill'], 1e7) * 1e9)) AS prefill,
    toUInt64(round(least(number['gen_ai.latency.time_in_model_decode'], 1e7) * 1e9)) AS decode,
    toUInt32(if(mapContains(number, 'gen_ai.usage.output_tokens'),
        number['gen_ai.usage.output_tokens'], number['gen_ai.usage.completion_tokens'])) AS n
SELECT
    start + toIntervalNanosecond(whole_ns) AS end,
    start, trace_id, span_id, parent_span_id,
    text['gen_ai.request.id'] AS request_id,
    'vllm' AS engine,
    service, instance, variant,
    'server' AS vantage,
    text['gen_ai.operation.name'] AS operation,
    multiIf(text['gen_ai.response.model'] != '', text['gen_ai.response.model'],
            text['gen_ai.request.model'] != '', text['gen_ai.request.model'],
            startsWith(service, 'unknown_service'), '', service) AS model,
    text['tokentrail.tenant'] AS tenant,
    text['tokentrail.slo_class'] AS slo_class,
    if(status_code = 2, 'error', 'ok') AS status,
    if(text['error.type'] != '', text['error.type'], extract(status_message, '^([A-Za-z_][A-Za-z0-9_.]*): ')) AS error_type,
    if(mapContains(number, 'gen_ai.usage.input_tokens'),
        number['gen_ai.usage.input_tokens'], number['gen_ai.usage.prompt_tokens']) AS input_tokens,
    n AS output_tokens,
    number['gen_ai.usage.cache_read.input_tokens'] AS cached_tokens,
    if(has_token, first_ns, NULL) AS ttft_ns,
    if(has_token AND n > 1 AND whole_ns >= first_ns, (whole_ns - first_ns) / (n - 1), NULL) AS tpot_ns,
    whole_ns AS e2e_ns,
    if(has_phases, greatest(whole_ns, prefill + decode) - prefill - decode, NULL) AS queue_ns,
    if(has_phases, prefill, NULL) AS prefill_ns,
    if(has_phases, decode, NULL) AS decode_ns,
    getSetting('insert_deduplication_token') AS segment,
    now64(3, 'UTC') AS ingested_at
FROM vllm_spans
WHERE claim = 'vllm.request';

CREATE OR REPLACE MATERIALIZED VIEW vllm_phases TO phases AS
WITH
    toUInt64(round(least(number['gen_ai.latency.time_in_model_prefill'], 1e7) * 1e9)) AS prefill,
    toUInt64(round(least(number['gen_ai.latency.time_in_model_decode'], 1e7) * 1e9)) AS decode,
    toUInt64(greatest(toUInt64(round(least(number['gen_ai.latency.e2e'], 1e7) * 1e9)), prefill + decode) - prefill - decode) AS queue,
    arrayJoin([('queued', toUInt64(0), queue), ('prefill', queue, prefill), ('decode', queue + prefill, decode)]) AS phase
SELECT
    toStartOfMinute(span.start + toIntervalNanosecond(phase.2 + phase.3)) AS minute,
    trace_id,
    span_id AS request_span_id,
    span.start + toIntervalNanosecond(phase.2) AS start,
    phase.1 AS name,
    phase.3 AS duration_ns
FROM vllm_spans AS span
WHERE claim = 'vllm.request' AND mapContains(number, 'gen_ai.latency.time_in_model_prefill') AND phase.3 > 0;

-- Start-up is one trace; its parts come from several processes. 'Load weights' becomes load_weights, as ours is called.
CREATE OR REPLACE MATERIALIZED VIEW vllm_cold_starts TO cold_starts AS
SELECT
    start, duration_ns, trace_id, span_id, parent_span_id,
    'vllm' AS engine,
    service, instance, variant,
    if(startsWith(service, 'unknown_service'), '', service) AS model,
    if(name = 'Overall Loading', '', trim(BOTH '_' FROM replaceRegexpAll(lower(name), '[^a-z0-9]+', '_'))) AS phase,
    if(status_code = 2, 'error', 'ok') AS status,
    extract(status_message, '^([A-Za-z_][A-Za-z0-9_.]*): ') AS error_type,
    getSetting('insert_deduplication_token') AS segment
FROM vllm_spans
WHERE claim = 'vllm.cold_start';
