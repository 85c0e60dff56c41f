-- Traceloop's instrumentation of the openai client (recorded with 0.62). Each chunk of a chat stream is an event with a time.

CREATE TABLE IF NOT EXISTS traceloop_spans AS flat_spans ENGINE = Null;
CREATE OR REPLACE MATERIALIZED VIEW traceloop_route TO traceloop_spans AS SELECT * FROM rare_spans WHERE claim = 'traceloop.request';

-- A stream has status OK also when it was abandoned or broken by an error; only then it has no finish reason. A response that failed
-- has status OK and the reason `error`.
CREATE OR REPLACE MATERIALIZED VIEW traceloop_requests TO new_requests AS
WITH
    $reported AS reported,
    $counted AS counted,
    $gave_up AS gave_up,
    $finish_reason AS reason,
    $end_of AS end_of,
    $status_of_end AS status_of_end,
    $error_of_end AS error_of_end,
    end_of(reason) AS ended,
    status_code = 2 OR text['error.type'] != '' AS failed,
    reported('gen_ai.is_streaming') AS stream,
    gave_up(text['error.type']) OR NOT failed AND stream = 1 AND reason = '' AS is_cancelled,
    $unless_more AS unless_more,
    $told_input AS input,
    $told_cached AS cached,
    $told_output AS n,
    $told_reasoning AS reasoning,
    $chunk_us AS chunk_us,
    if(empty(chunk_us), NULL, chunk_us[1] * 1000) AS first_ns,
    -- The chunk after the last token carries the usage.
    arraySlice(chunk_us, 1, length(chunk_us) - toUInt8(ifNull(length(chunk_us) = n + 1, false))) AS token_us,
    duration_ns AS whole_ns,
    $gaps_us AS gaps_us
SELECT
    end, start, trace_id, span_id, parent_span_id,
    text['gen_ai.response.id'] AS request_id,
    'traceloop' AS engine,
    service, instance, $process_tenant AS process_tenant, variant,
    'client' AS vantage,
    text['gen_ai.operation.name'] AS operation,
    if(text['gen_ai.response.model'] != '', text['gen_ai.response.model'], text['gen_ai.request.model']) AS model,
    $tenant AS tenant,
    text['tokentrail.slo_class'] AS slo_class,
    $genai_labels AS labels,
    status_of_end(is_cancelled, failed, ended, false) AS status,
    error_of_end(is_cancelled, text['error.type'], ended, reason) AS error_type,
    reason AS finish_reason,
    unless_more(input, cached, input) AS input_tokens,
    unless_more(n, reasoning, n) AS output_tokens,
    unless_more(cached, cached, input) AS cached_tokens,
    unless_more(reasoning, reasoning, n) AS reasoning_tokens,
    $modalities,
    if(stream = 0 AND n > 0, duration_ns, first_ns) AS ttft_ns,
    $tpot_of_chunks AS tpot_ns,
    duration_ns AS e2e_ns,
    getSetting('insert_deduplication_token') AS segment,
    now64(3, 'UTC') AS ingested_at,
    multiIf(stream = 0 AND n > 0, 0, empty(token_us), NULL, 1000 * toUInt64(arrayMax(gaps_us))) AS gap_ns,
    if(gap_ns > 0, indexOf(gaps_us, arrayMax(gaps_us)), NULL) AS gap_index,
    $weight AS weight
FROM traceloop_spans;

-- A chunk is a token when the counts say nothing else. The chunk after the last token carries the usage.
CREATE OR REPLACE MATERIALIZED VIEW traceloop_tokens TO new_tokens AS
SELECT
    toStartOfMinute(start + toIntervalMicrosecond(at_us)) AS minute,
    trace_id,
    span_id AS request_span_id,
    $tenant_hash AS tenant_hash,
    toUInt16(0) AS choice,
    toUInt32(place - 1) AS token_index,
    if(place = 1, at_us, at_us - chunk_us[place - 1]) AS duration_us,
    toUInt64(0) AS step
FROM
(
    WITH $reported AS reported, $counted AS counted, $told_output AS n
    SELECT start, trace_id, span_id, $process_tenant AS process_tenant, $chunk_us AS chunk_us, ifNull(n, length(chunk_us)) AS known
    FROM traceloop_spans
    WHERE length(chunk_us) IN (known, known + 1)
)
ARRAY JOIN arraySlice(chunk_us, 1, known) AS at_us, arrayEnumerate(arraySlice(chunk_us, 1, known)) AS place;
