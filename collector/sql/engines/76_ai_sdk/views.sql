-- Vercel's AI SDK for JavaScript and TypeScript (recorded with 5.0, 6.0 and 7.0).

CREATE TABLE IF NOT EXISTS ai_sdk_spans AS flat_spans ENGINE = Null;
CREATE OR REPLACE MATERIALIZED VIEW ai_sdk_route TO ai_sdk_spans AS
SELECT * REPLACE (if($own_key IN ($wrapper_keys FROM rare_spans WHERE $makes_wrappers), '', rare_spans.claim) AS claim)
FROM rare_spans WHERE rare_spans.claim = 'ai_sdk.request';

CREATE OR REPLACE MATERIALIZED VIEW ai_sdk_wrappers TO unclaimed_spans AS
SELECT * FROM ai_sdk_spans WHERE claim = '';

-- A stream that its reader aborted has no finish reason. One that broke has the reason `error`, or `unknown` in version 5, and no usage.
CREATE OR REPLACE MATERIALIZED VIEW ai_sdk_requests TO new_requests AS
WITH
    $nanoseconds AS nanoseconds,
    $reported AS reported,
    $counted AS counted,
    $cut AS cut,
    $finish_reason AS reason,
    $unless_more AS unless_more,
    $told_input AS input,
    ifNull($told_cached, counted('ai.usage.cachedInputTokens')) AS cached,
    $told_output AS n,
    $told_reasoning AS reasoning,
    cut(arrayFirst(a -> a.key = 'exception.type', arrayFlatten(events.attributes)).value.string_value) AS exception,
    $end_of AS end_of,
    $status_of_end AS status_of_end,
    $error_of_end AS error_of_end,
    -- These two stand for a reason that the provider did not tell.
    end_of(if(reason IN ('unknown', 'other') AND n IS NOT NULL, '', reason)) AS ended,
    status_code = 2 OR ended = 'error' OR reason = 'unknown' AND n IS NULL AS failed,
    if(failed, exception = 'AbortError', reason = '') AS is_cancelled,
    -- Version 7 does not name its operations. It tells how long a call took, and of a stream when its first output came.
    endsWith(text['ai.operationId'], '.doGenerate')
        OR $has_duration AND NOT $has_first_chunk
        AS is_whole,
    multiIf(is_whole, 0, endsWith(text['ai.operationId'], '.doStream') OR $has_first_chunk, 1, NULL) AS stream,
    -- Its first chunk is the event by which Anthropic's server, and OpenAI's for responses, says that it accepted a request. It brings
    -- no token. Version 6, which tells the usage in detail, does not count that of responses.
    endsWith(text['ai.model.provider'], '.messages')
        OR endsWith(text['ai.model.provider'], '.responses') AND NOT mapContains(number, 'ai.usage.inputTokenDetails.noCacheTokens')
        AS begins_early,
    multiIf(
        begins_early, nan,
        mapContains(number, 'ai.response.msToFirstChunk'), number['ai.response.msToFirstChunk'] / 1e3,
        mapContains(number, 'ai.stream.msToFirstChunk'), number['ai.stream.msToFirstChunk'] / 1e3,
        reported($key_first_chunk)) AS first_s,
    -- Versions before 7 tell the time of the first chunk, also when no token came.
    if(n = 0, NULL, nanoseconds(first_s, duration_ns)) AS first_ns
SELECT
    end, start, trace_id, span_id, parent_span_id,
    text['gen_ai.response.id'] AS request_id,
    'ai_sdk' AS engine,
    service, instance, $process_tenant AS process_tenant, variant,
    'client' AS vantage,
    'chat' AS operation,
    multiIf(text['gen_ai.response.model'] != '', text['gen_ai.response.model'],
            text['gen_ai.request.model'] != '', text['gen_ai.request.model'], text['ai.model.id']) AS model,
    $tenant AS tenant,
    text['tokentrail.slo_class'] AS slo_class,
    $genai_labels AS labels,
    status_of_end(is_cancelled, failed, ended, false) AS status,
    error_of_end(is_cancelled, exception, ended, reason) AS error_type,
    reason AS finish_reason,
    unless_more(input, cached, input) AS input_tokens,
    unless_more(n, reasoning, n) AS output_tokens,
    unless_more(cached, cached, input) AS cached_tokens,
    unless_more(reasoning, reasoning, n) AS reasoning_tokens,
    $modalities,
    if(is_whole AND n > 0, duration_ns, first_ns) AS ttft_ns,
    $tpot_of_chunks AS tpot_ns,
    duration_ns AS e2e_ns,
    getSetting('insert_deduplication_token') AS segment,
    now64(3, 'UTC') AS ingested_at,
    $weight AS weight
FROM ai_sdk_spans
WHERE claim = 'ai_sdk.request';
