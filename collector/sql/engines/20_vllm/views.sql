-- vLLM (recorded with 0.32). Its latencies are differences of a monotonic clock in seconds; its span's start is wall clock.
-- queue_ns is the time outside inference. vLLM's own time_in_queue begins when the engine core receives the request, but
-- the request has waited before that too, and TTFT contains both waits. So queue + prefill + decode = E2E.

CREATE TABLE IF NOT EXISTS vllm_spans AS flat_spans ENGINE = Null;
CREATE OR REPLACE MATERIALIZED VIEW vllm_route TO vllm_spans AS SELECT * FROM flat_spans WHERE startsWith(claim, 'vllm.');

CREATE OR REPLACE MATERIALIZED VIEW vllm_requests TO requests AS
WITH
    $nanoseconds AS nanoseconds,
    $reported AS reported,
    $counted AS counted,
    ifNull(nanoseconds(reported('gen_ai.latency.e2e'), $longest_ns), duration_ns) AS e2e,
    nanoseconds(reported('gen_ai.latency.time_to_first_token'), e2e) AS first_ns,
    nanoseconds(reported('gen_ai.latency.time_in_model_prefill'), e2e) AS prefill,
    nanoseconds(reported('gen_ai.latency.time_in_model_decode'), e2e) AS decode,
    ifNull(counted('gen_ai.usage.output_tokens'), counted('gen_ai.usage.completion_tokens')) AS n
SELECT
    start + toIntervalNanosecond(e2e) AS end,
    start, trace_id, span_id, parent_span_id,
    text['gen_ai.request.id'] AS request_id,
    'vllm' AS engine,
    service, instance, variant,
    'server' AS vantage,
    text['gen_ai.operation.name'] AS operation,
    multiIf(text['gen_ai.response.model'] != '', text['gen_ai.response.model'],
            text['gen_ai.request.model'] != '', text['gen_ai.request.model'],
            startsWith(service, 'unknown_service'), '', service) AS model,
    $tenant AS tenant,
    text['tokentrail.slo_class'] AS slo_class,
    if(status_code = 2, 'error', 'ok') AS status,
    if(text['error.type'] != '', text['error.type'], $exception_in_status) AS error_type,
    ifNull(counted('gen_ai.usage.input_tokens'), counted('gen_ai.usage.prompt_tokens')) AS input_tokens,
    n AS output_tokens,
    counted('gen_ai.usage.cache_read.input_tokens') AS cached_tokens,
    first_ns AS ttft_ns,
    if(n > 1, (e2e - first_ns) / (n - 1), NULL) AS tpot_ns,
    e2e AS e2e_ns,
    greatest(e2e, prefill + decode) - prefill - decode AS queue_ns,
    prefill AS prefill_ns,
    decode AS decode_ns,
    getSetting('insert_deduplication_token') AS segment,
    now64(3, 'UTC') AS ingested_at
FROM vllm_spans
WHERE claim = 'vllm.request';

CREATE OR REPLACE MATERIALIZED VIEW vllm_phases TO phases AS
SELECT
    toStartOfMinute(arrival + toIntervalNanosecond(phase.2 + phase.3)) AS minute,
    trace_id,
    span_id AS request_span_id,
    arrival + toIntervalNanosecond(phase.2) AS start,
    phase.1 AS name,
    phase.3 AS duration_ns
FROM
(
    WITH
        $nanoseconds AS nanoseconds,
        $reported AS reported,
        ifNull(nanoseconds(reported('gen_ai.latency.e2e'), $longest_ns), duration_ns) AS e2e
    SELECT
        trace_id, span_id,
        start AS arrival,
        nanoseconds(reported('gen_ai.latency.time_in_model_prefill'), e2e) AS known_prefill,
        nanoseconds(reported('gen_ai.latency.time_in_model_decode'), e2e) AS known_decode,
        assumeNotNull(known_prefill) AS prefill,
        assumeNotNull(known_decode) AS decode,
        toUInt64(greatest(e2e, prefill + decode) - prefill - decode) AS queue
    FROM vllm_spans
    WHERE claim = 'vllm.request' AND known_prefill IS NOT NULL AND known_decode IS NOT NULL
)
ARRAY JOIN [('queued', toUInt64(0), queue), ('prefill', queue, prefill), ('decode', queue + prefill, decode)] AS phase
WHERE phase.3 > 0;

-- A start-up is one trace with spans of several processes. Its span 'Load weights' becomes the phase load_weights, the name
-- that tokentrail's own cold starts use.
CREATE OR REPLACE MATERIALIZED VIEW vllm_cold_starts TO cold_starts AS
SELECT
    start, duration_ns, trace_id, span_id, parent_span_id,
    'vllm' AS engine,
    service, instance, variant,
    if(startsWith(service, 'unknown_service'), '', service) AS model,
    if(name = 'Overall Loading', '', trim(BOTH '_' FROM replaceRegexpAll(lower(name), '[^a-z0-9]+', '_'))) AS phase,
    if(status_code = 2, 'error', 'ok') AS status,
    $exception_in_status AS error_type,
    getSetting('insert_deduplication_token') AS segment
FROM vllm_spans
WHERE claim = 'vllm.cold_start';
