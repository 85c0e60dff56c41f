-- Requests of any other instrumentation that follows OpenTelemetry's GenAI conventions. A value that the span does not
-- have stays NULL or empty; none is estimated.

CREATE TABLE IF NOT EXISTS genai_spans AS flat_spans ENGINE = Null;
CREATE OR REPLACE MATERIALIZED VIEW genai_route TO genai_spans AS
-- Logfire's log of a stream says how long the stream took, from its headers on.
WITH if(text['logfire.span_type'] = 'log', toUInt64(round(least(number['duration'] * 1e9, $longest_ns))), flat_spans.duration_ns) AS lasted_ns
SELECT * REPLACE (
    if($own_key IN ($wrapper_keys FROM flat_spans WHERE $makes_wrappers), '', flat_spans.claim) AS claim,
    flat_spans.end - toIntervalNanosecond(lasted_ns) AS start,
    lasted_ns AS duration_ns)
FROM flat_spans WHERE flat_spans.claim = 'genai.request';

CREATE OR REPLACE MATERIALIZED VIEW genai_wrappers TO unclaimed_spans AS
SELECT * FROM genai_spans WHERE claim = '';

CREATE OR REPLACE MATERIALIZED VIEW genai_requests TO new_requests AS
WITH
    $unless_more AS unless_more,
    $status_of_end AS status_of_end,
    $error_of_end AS error_of_end,
    -- Several answers are streams beside or behind each other (Google's client calls tools itself within one span). Strands says neither what
    -- is streamed nor how many tokens are reasoning. OpenLIT counts the time of the first chunk from the headers of the answer on, so that the
    -- time after it is too long.
    if(answers > 1 OR of_strands, NULL, $tpot_of_chunks) AS after_first_ns
SELECT
    end, start, trace_id, span_id, parent_span_id,
    text['gen_ai.response.id'] AS request_id,
    'genai' AS engine,
    service, instance, $process_tenant AS process_tenant, variant,
    if(kind = 2, 'server', 'client') AS vantage,
    text['gen_ai.operation.name'] AS operation,
    if(text['gen_ai.response.model'] != '', text['gen_ai.response.model'], text['gen_ai.request.model']) AS model,
    $tenant AS tenant,
    text['tokentrail.slo_class'] AS slo_class,
    $genai_labels AS labels,
    -- A stream without a finish reason and output tokens may have ended or not. So may an answer of Chat Completions that Traceloop's
    -- instrumentation of OpenAI's agents tells of.
    status_of_end(is_cancelled, failed, ended,
        reason = '' AND told_output IS NULL AND (stream = 1 OR startsWith(scope, 'logfire.') AND text['logfire.span_type'] = 'log' OR of_agents)) AS status,
    error_of_end(is_cancelled, exception, ended, reason) AS error_type,
    reason AS finish_reason,
    unless_more(input, cached, input) AS input_tokens,
    unless_more(n, reasoning, n) AS output_tokens,
    unless_more(cached, cached, input) AS cached_tokens,
    unless_more(reasoning, reasoning, n) AS reasoning_tokens,
    image_input_tokens, audio_input_tokens, image_output_tokens, audio_output_tokens,
    -- Not streamed: the first token arrives with the last.
    if(NOT mapContains(number, first_key) AND stream = 0 AND n > 0, duration_ns, first_ns) AS ttft_ns,
    if(of_openlit, NULL, after_first_ns) AS tpot_ns,
    if(of_openlit AND stream = 1, after_first_ns, NULL) AS tpot_at_most_ns,
    duration_ns AS e2e_ns,
    getSetting('insert_deduplication_token') AS segment,
    now64(3, 'UTC') AS ingested_at,
    $weight AS weight
FROM
(
    -- What the other columns are made of. An alias that is used several times costs an insert more than a column.
    WITH $nanoseconds AS nanoseconds, $reported AS reported, $counted AS counted, $gave_up AS gave_up, $end_of AS end_of
    SELECT
        *,
        -- Spans of the anthropic client (from 2.14) have an attribute of their own.
        -- Semantic Kernel names a member of Python's: FinishReason.STOP.
        startsWith(scope, 'semantic_kernel.') AS of_semantic_kernel,
        -- Strands tells the reason in an event alone, with new conventions in its JSON.
        scope = 'strands.telemetry.tracer' AS of_strands,
        -- OpenTelemetry's of LangChain. LangChain gives no finish reason of a response, and `error` stands for that.
        scope = 'opentelemetry.instrumentation.genai.langchain' AS of_langchain,
        $finish_reason AS told_reason,
        multiIf(scope = 'com.anthropic.sdk.python', left(text['anthropic.message.stop_reason'], 64),
            of_strands, left(extract(arrayFirst(a -> a.key IN ('finish_reason', 'gen_ai.output.messages'), arrayFlatten(events.attributes)).value.string_value,
                '(?:^|"finish_reason": ")([a-z_]+)(?:$$|")'), 64),
            of_semantic_kernel, left(lower(replaceOne(text['gen_ai.response.finish_reason'], 'FinishReason.', '')), 64),
            of_langchain AND told_reason = 'error', '',
            startsWith(scope, 'logfire.') AND told_reason = '', left(extract(text['gen_ai.output.messages'], '"finish_reason": ?"([a-z_]+)"'), 64),
            told_reason) AS reason,
        end_of(reason) AS ended,
        -- OpenTelemetry's instrumentations of clients and the anthropic client say when a request is streamed, and nothing when it is not. A
        -- stream that has ended has a finish reason. That of Google's client before 1.1 says nothing of streams, and has no address.
        scope IN ('opentelemetry.instrumentation.genai.openai', 'opentelemetry.instrumentation.genai.anthropic', 'com.anthropic.sdk.python')
            OR scope = 'opentelemetry.instrumentation.google_genai' AND mapContains(text, 'server.address') AS tells_streams,
        -- That of AWS's client names the call: Converse, ConverseStream, InvokeModel, InvokeModelWithResponseStream.
        scope = 'opentelemetry.instrumentation.botocore.bedrock-runtime' AS of_botocore,
        multiIf(text['gen_ai.request.stream'] != '', toFloat64(text['gen_ai.request.stream'] = 'true'),
            mapContains(number, 'gen_ai.request.stream'), number['gen_ai.request.stream'], tells_streams, 0,
            startsWith(scope, 'logfire.') AND text['logfire.span_type'] = 'log', 1,
            of_botocore, toFloat64(endsWith(text['rpc.method'], 'Stream')), nan) AS stream,
        $told_input AS told_input,
        $told_output AS told_output,
        $told_reasoning AS reasoning,
        $told_cached AS cached,
        $key_first_chunk AS first_key,
        counted('gen_ai.usage.total_tokens') AS told_total,
        startsWith(scope, 'openlit') AS of_openlit,
        length(attributes.value.array_value.values.string_value[indexOf(attributes.key, 'gen_ai.response.finish_reasons')]) AS answers,
        status_code = 2 OR text['error.type'] != '' AS failed,
        -- Semantic Kernel sends a class as Python prints it: <class 'openai.APIError'>.
        multiIf(text['error.type'] = '' AND failed, $exception_in_events,
            of_semantic_kernel, replaceRegexpOne(text['error.type'], '^<class \'(.+)\'>$$', '\\1'), text['error.type']) AS exception,
        -- Bedrock counts tokens of the cache beside the others, but for models of OpenAI.
        if((of_botocore OR scope = 'opentelemetry.instrumentation.bedrock') AND position(text['gen_ai.request.model'], 'openai.') = 0,
            ifNull(cached, 0) + ifNull($told_written, 0), 0) AS beside,
        -- The first event of Anthropic's streams says that the request was accepted. It brings no token, and a first number of them.
        scope = 'opentelemetry.instrumentation.genai.anthropic' AS begins_early,
        -- Traceloop's of Google's client leaves reasoning tokens out of the output tokens, and not out of the total.
        scope = 'opentelemetry.instrumentation.google_generativeai'
            AND ifNull(told_total > told_input + told_output, false) AS hides_reasoning,
        scope = 'opentelemetry.instrumentation.openai_agents' AS of_agents,
        of_agents AND told_input = 0 AND told_output = 0 AS has_no_usage,
        multiIf(has_no_usage OR hides_reasoning OR begins_early AND reason = '', NULL,
            -- The total says that reasoning tokens are beside the others, as Google counts them.
            reasoning > 0 AND told_total = told_input + told_output + reasoning, toUInt32(told_output + reasoning),
            told_output) AS n,
        if(has_no_usage, NULL, told_input + beside) AS input,
        $modalities,
        -- Strands tells whole milliseconds. Before a call of a tool it waits for the whole of it, with some models. OpenLIT has 0 for none.
        multiIf(of_strands AND reason IN ('', 'tool_use') OR of_openlit AND number[first_key] = 0, nan,
            reported(first_key) / if(of_strands, 1e3, 1)) AS first_s,
        -- Its sister for JavaScript says nothing of streams. An answer that has ended has a finish reason there too.
        gave_up(exception)
            OR (tells_streams OR of_botocore) AND if(failed, status_message = 'abandoned stream', stream = 1 AND reason = '')
            -- The anthropic client leaves the status of a call open whose task was cancelled.
            OR scope = 'com.anthropic.sdk.python' AND status_code = 0 AND reason = ''
            OR scope = '@opentelemetry/instrumentation-openai' AND NOT failed AND reason = ''
            -- Traceloop's of LangChain leaves the status open too.
            OR (scope IN ('pydantic-ai', 'opentelemetry.instrumentation.langchain') OR of_semantic_kernel) AND NOT failed AND reason = '' AND n IS NULL
            -- Those of OpenAI's agents. OpenTelemetry's older one has zeros for an answer without usage, and nothing for one that nobody awaited. Traceloop's
            -- has nothing for any answer of Chat Completions, and not even the model for a response that nobody awaited.
            OR of_agents AND NOT failed AND told_output IS NULL AND (mapContains(text, 'server.address') OR text['gen_ai.request.model'] = '')
            AS is_cancelled,
        -- The first event of a stream of responses says that the request was accepted. It brings no token.
        if(text['openai.api.type'] = 'responses' OR begins_early OR of_langchain AND startsWith(text['gen_ai.response.id'], 'resp_'), NULL, nanoseconds(first_s, duration_ns)) AS first_ns
    FROM genai_spans
    WHERE claim = 'genai.request'
);
