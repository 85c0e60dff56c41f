-- LiteLLM's proxy and SDK (recorded with 1.108, both of its OpenTelemetry integrations). The request is LiteLLM's call of the
-- model, measured where LiteLLM makes it, without the time of the proxy before and after it.

CREATE TABLE IF NOT EXISTS litellm_spans AS flat_spans ENGINE = Null;
CREATE OR REPLACE MATERIALIZED VIEW litellm_route TO litellm_spans AS SELECT * FROM rare_spans WHERE startsWith(claim, 'litellm.');

-- Numbers of tokens are 0 when the call failed: they are not known then. v1 sends some booleans and arrays as text.
CREATE OR REPLACE MATERIALIZED VIEW litellm_requests TO new_requests AS
WITH
    $nanoseconds AS nanoseconds,
    $reported AS reported,
    $counted AS counted,
    $gave_up AS gave_up,
    $finish_reason AS reason,
    $end_of AS end_of,
    $status_of_end AS status_of_end,
    $error_of_end AS error_of_end,
    end_of(reason) AS ended,
    name = 'litellm_request' AS is_v1,
    -- v1: 'True' or 'False'. v2: true, or absent for a request that is not streamed, and for a stream that broke.
    if(is_v1, transform(text['llm.is_streaming'], ['True', 'False'], [1., 0.], nan),
        multiIf(number['litellm.request.streaming'] = 1 OR $has_first_chunk, 1., failed, nan, 0.)) AS stream,
    status_code = 2 OR text['error.type'] != '' AS failed,
    -- Where a client has left, LiteLLM counts the tokens so far itself and adds both counts of the cache, 0 where it has none. Servers of OpenAI's
    -- API tell no tokens that were written to the cache, so LiteLLM has that count of no stream of theirs that ended. v1 has it in a text of Python's.
    if(is_v1, position(text['metadata.usage_object'], '\'cache_creation_input_tokens\': ') > 0,
        $has_written) AS counts_writes,
    stream = 1 AND counts_writes AND text['gen_ai.system'] IN ('openai', 'azure', 'hosted_vllm') AS was_left,
    -- Nothing tells the end of other servers' streams with that count, of those of other APIs than Chat Completions, and of v1 without the text.
    stream = 1 AND (counts_writes OR is_v1 AND text['metadata.usage_object'] = ''
        OR if(is_v1, text['gen_ai.operation.name'], text['litellm.call_type']) IN ('responses', 'aresponses', 'anthropic_messages')) AS has_no_end,
    gave_up(text['error.type']) OR NOT failed AND (stream = 1 AND reason = '' OR was_left) AS is_cancelled,
    -- LiteLLM estimates the tokens of a call that failed or was left.
    failed OR was_left AS estimates,
    (key -> if(estimates, NULL, counted(key))) AS used,
    $unless_more AS unless_more,
    used('gen_ai.usage.input_tokens') AS input,
    used('gen_ai.usage.cache_read.input_tokens') AS cached,
    used('gen_ai.usage.output_tokens') AS n,
    -- LiteLLM tells reasoning tokens in the words of Langfuse alone, when its setting `mapper_names` has `langfuse`.
    ifNull(used('gen_ai.usage.reasoning.output_tokens'),
        if(estimates, NULL, toUInt32OrNull(JSONExtractRaw(text['langfuse.observation.usage_details'], 'output_reasoning_tokens')))) AS reasoning,
    -- `time_to_first_chunk` begins with the last attempt of a call, and the span with one before. Langfuse's words have the time of the clock.
    parseDateTime64BestEffortOrNull(trim(BOTH '"' FROM text['langfuse.observation.completion_start_time']), 9, 'UTC') AS first_time,
    -- The first event of a stream of these two APIs says that the request was accepted. It brings no token.
    multiIf(text['litellm.call_type'] IN ('responses', 'aresponses', 'anthropic_messages'), NULL,
        stream = 1 AND first_time BETWEEN start AND end, toUInt64(toUnixTimestamp64Nano(assumeNotNull(first_time)) - toUnixTimestamp64Nano(start)),
        nanoseconds(reported($key_first_chunk), duration_ns)) AS first_ns
SELECT
    end, start, trace_id, span_id, parent_span_id,
    text['gen_ai.response.id'] AS request_id,
    'litellm' AS engine,
    service, instance, $process_tenant AS process_tenant, variant,
    'client' AS vantage,
    multiIf(claim = 'litellm.refused', if(endsWith(text['http.route'], '/completions')
                AND NOT endsWith(text['http.route'], '/chat/completions'), 'text_completion', 'chat'),
            is_v1, multiIf(endsWith(text['gen_ai.operation.name'], 'text_completion'), 'text_completion',
                           position(text['gen_ai.operation.name'], 'generate_content') > 0, 'generate_content', 'chat'),
            text['gen_ai.operation.name']) AS operation,
    -- The name that the client asked for; v1 has it in a key of its own.
    multiIf(text['litellm.model_group'] != '', text['litellm.model_group'],
            text['gen_ai.response.model'] != '', text['gen_ai.response.model'], text['gen_ai.request.model']) AS model,
    $tenant AS tenant,
    text['tokentrail.slo_class'] AS slo_class,
    $genai_labels AS labels,
    status_of_end(is_cancelled, failed, ended, has_no_end) AS status,
    error_of_end(is_cancelled, text['error.type'], ended, reason) AS error_type,
    reason AS finish_reason,
    unless_more(input, cached, input) AS input_tokens,
    unless_more(n, reasoning, n) AS output_tokens,
    unless_more(cached, cached, input) AS cached_tokens,
    unless_more(reasoning, reasoning, n) AS reasoning_tokens,
    if(stream = 0 AND n > 0, duration_ns, first_ns) AS ttft_ns,
    -- The span of v2 ends up to half a second after the last chunk.
    $tpot_of_chunks AS tpot_at_most_ns,
    duration_ns AS e2e_ns,
    getSetting('insert_deduplication_token') AS segment,
    now64(3, 'UTC') AS ingested_at,
    $weight AS weight
FROM litellm_spans;
