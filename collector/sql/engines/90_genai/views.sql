-- Requests of any other instrumentation that follows OpenTelemetry's GenAI conventions. A value that the span does not
-- have stays NULL or empty; none is estimated.

CREATE TABLE IF NOT EXISTS genai_spans AS flat_spans ENGINE = Null;
CREATE OR REPLACE MATERIALIZED VIEW genai_route TO genai_spans AS
SELECT * REPLACE (if((trace_id, service, instance, span_id) IN
    (SELECT $parent_key FROM flat_spans WHERE $makes_wrappers), '', flat_spans.claim) AS claim)
FROM flat_spans WHERE flat_spans.claim = 'genai.request';

CREATE OR REPLACE MATERIALIZED VIEW genai_wrappers TO unclaimed_spans AS
SELECT * FROM genai_spans WHERE claim = '';

CREATE OR REPLACE MATERIALIZED VIEW genai_requests TO requests AS
WITH
    $nanoseconds AS nanoseconds,
    $reported AS reported,
    $counted AS counted,
    $gave_up AS gave_up,
    -- Spans of the anthropic client (from 2.14) have an attribute of their own.
    -- Semantic Kernel names a member of Python's: FinishReason.STOP.
    startsWith(scope, 'semantic_kernel.') AS of_semantic_kernel,
    multiIf(scope = 'com.anthropic.sdk.python', left(text['anthropic.message.stop_reason'], 64),
        of_semantic_kernel, left(lower(replaceOne(text['gen_ai.response.finish_reason'], 'FinishReason.', '')), 64),
        $finish_reason) AS reason,
    -- OpenTelemetry's instrumentation of the openai client and the anthropic client say when a request is streamed, and
    -- nothing when it is not. A stream that has ended has a finish reason.
    scope IN ('opentelemetry.instrumentation.genai.openai', 'com.anthropic.sdk.python') AS tells_streams,
    if(mapContains(number, 'gen_ai.request.stream'), number['gen_ai.request.stream'], if(tells_streams, 0, nan)) AS stream,
    status_code = 2 OR text['error.type'] != '' AS failed,
    -- Semantic Kernel sends a class as Python prints it: <class 'openai.APIError'>.
    multiIf(text['error.type'] = '' AND failed, $exception_in_events,
        of_semantic_kernel, replaceRegexpOne(text['error.type'], '^<class \'(.+)\'>$$', '\\1'), text['error.type']) AS exception,
    -- Its sister for JavaScript says nothing of streams. An answer that has ended has a finish reason there too.
    gave_up(exception)
        OR tells_streams AND if(failed, status_message = 'abandoned stream', stream = 1 AND reason = '')
        OR scope = '@opentelemetry/instrumentation-openai' AND NOT failed AND reason = ''
        OR (scope = 'pydantic-ai' OR of_semantic_kernel) AND NOT failed AND reason = '' AND n IS NULL
        -- Traceloop's of OpenAI's agents. An answer without usage has zeros there, and one that nobody awaited has nothing.
        OR of_agents AND NOT failed AND told_output IS NULL
        AS is_cancelled,
    -- OpenTelemetry's conventions before 1.27 have the second keys.
    ifNull(counted('gen_ai.usage.input_tokens'), counted('gen_ai.usage.prompt_tokens')) AS told_input,
    ifNull(counted('gen_ai.usage.output_tokens'), counted('gen_ai.usage.completion_tokens')) AS told_output,
    scope = 'opentelemetry.instrumentation.openai_agents' AS of_agents,
    of_agents AND told_input = 0 AND told_output = 0 AS has_no_usage,
    if(has_no_usage, NULL, told_output) AS n,
    counted('gen_ai.usage.reasoning.output_tokens') AS reasoning,
    -- Pydantic AI names the time as the conventions name a metric.
    if(mapContains(number, 'gen_ai.response.time_to_first_chunk'),
        'gen_ai.response.time_to_first_chunk', 'gen_ai.client.operation.time_to_first_chunk') AS first_key,
    -- The first event of a stream of responses says that the request was accepted. It brings no token.
    if(text['openai.api.type'] = 'responses', NULL, nanoseconds(reported(first_key), duration_ns)) AS first_ns
SELECT
    end, start, trace_id, span_id, parent_span_id,
    text['gen_ai.response.id'] AS request_id,
    'genai' AS engine,
    service, instance, variant,
    if(kind = 2, 'server', 'client') AS vantage,
    text['gen_ai.operation.name'] AS operation,
    if(text['gen_ai.response.model'] != '', text['gen_ai.response.model'], text['gen_ai.request.model']) AS model,
    $tenant AS tenant,
    text['tokentrail.slo_class'] AS slo_class,
    multiIf(is_cancelled, 'cancelled', failed, 'error', 'ok') AS status,
    if(is_cancelled, '', exception) AS error_type,
    reason AS finish_reason,
    if(has_no_usage, NULL, told_input) AS input_tokens,
    n AS output_tokens,
    counted('gen_ai.usage.cache_read.input_tokens') AS cached_tokens,
    reasoning AS reasoning_tokens,
    -- Not streamed: the first token arrives with the last.
    if(NOT mapContains(number, first_key) AND stream = 0 AND n > 0, duration_ns, first_ns) AS ttft_ns,
    $tpot_of_chunks AS tpot_ns,
    duration_ns AS e2e_ns,
    getSetting('insert_deduplication_token') AS segment,
    now64(3, 'UTC') AS ingested_at
FROM genai_spans
WHERE claim = 'genai.request';
