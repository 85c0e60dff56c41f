-- OpenInference's instrumentations (recorded with those of the openai client, 0.1.66 for Python, 4.2.7 for JavaScript). They have attributes of their own.

CREATE TABLE IF NOT EXISTS openinference_spans AS flat_spans ENGINE = Null;
CREATE OR REPLACE MATERIALIZED VIEW openinference_route TO openinference_spans AS
SELECT * REPLACE (if($own_key IN ($wrapper_keys FROM rare_spans WHERE $makes_wrappers), '', rare_spans.claim) AS claim)
FROM rare_spans WHERE rare_spans.claim = 'openinference.request';

CREATE OR REPLACE MATERIALIZED VIEW openinference_wrappers TO unclaimed_spans AS
SELECT * FROM openinference_spans WHERE claim = '';

-- The span of a stream that its reader abandoned has no status. The response id is in the answer's JSON alone.
CREATE OR REPLACE MATERIALIZED VIEW openinference_requests TO new_requests AS
WITH
    $reported AS reported,
    $counted AS counted,
    $gave_up AS gave_up,
    $cut AS cut,
    text['llm.invocation_parameters'] AS parameters,
    scope IN ('openinference.instrumentation.openai', '@arizeai/openinference-instrumentation-openai') AS of_openai_client,
    -- LangChain's parameters have "stream": false also when it streams.
    scope = 'openinference.instrumentation.langchain' AS of_langchain,
    scope = 'openinference.instrumentation.bedrock' AS of_bedrock,
    -- The name of a call of Google's client or AWS's alone tells whether it is streamed.
    multiIf(of_langchain, NULL, scope = 'openinference.instrumentation.google_genai', toUInt8(endsWith(name, 'Stream')),
            of_bedrock, toUInt8(endsWith(name, '_stream')), JSONHas(parameters, 'stream'), toUInt8(JSONExtractBool(parameters, 'stream')),
            of_openai_client AND isValidJSON(parameters), 0, NULL) AS stream,
    status_code = 2 AS failed,
    $exception_in_status AS class,
    if(failed AND class = '', $exception_in_events, class) AS exception,
    -- A call of OpenAI's agents that nobody awaited has status OK and no answer.
    scope = 'openinference.instrumentation.openai_agents' AND text['output.value'] = '' AND told_output IS NULL
        -- One of DSPy whose task was cancelled has no status either.
        OR scope = 'openinference.instrumentation.dspy' AND text['output.value'] = '' AND status_code = 0 AS has_no_answer,
    ifNull(if(failed, gave_up(exception), status_code = 0 AND stream = 1 AND reason = '' OR has_no_answer), false)
        AS is_cancelled,
    $unless_more AS unless_more,
    $end_of AS end_of,
    $status_of_end AS status_of_end,
    $error_of_end AS error_of_end,
    -- With both families of names, the reason may be in the conventions' alone.
    if(text['llm.finish_reason'] != '', text['llm.finish_reason'], $finish_reason) AS reason,
    end_of(reason) AS ended,
    counted('llm.token_count.prompt') AS input,
    counted('llm.token_count.prompt_details.cache_read') AS cached,
    counted('llm.token_count.completion') AS told_output,
    -- The first event of Anthropic's streams has a number of tokens. One that its reader left has no other.
    if(is_cancelled, NULL, told_output) AS n,
    counted('llm.token_count.completion_details.reasoning') AS reasoning,
    arrayFirst(e -> e.name = 'First Token Stream Event', events).time_unix_nano AS first_time,
    -- The first event of a stream of the openai client's responses says that the request was accepted. It brings no token.
    if(NOT (of_openai_client AND name = 'Response') AND first_time BETWEEN toUnixTimestamp64Nano(start) AND toUnixTimestamp64Nano(end),
        first_time - toUnixTimestamp64Nano(start), NULL) AS first_ns
SELECT
    end, start, trace_id, span_id, parent_span_id,
    cut(JSONExtractString(text['output.value'], 'id')) AS request_id,
    'openinference' AS engine,
    service, instance, $process_tenant AS process_tenant, variant,
    'client' AS vantage,
    if(of_openai_client AND name = 'Completion', 'text_completion', 'chat') AS operation,
    if(text['llm.model_name'] != '', text['llm.model_name'], cut(JSONExtractString(parameters, 'model'))) AS model,
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
    if(stream = 0 AND n > 0, duration_ns, first_ns) AS ttft_ns,
    $tpot_of_chunks AS tpot_ns,
    duration_ns AS e2e_ns,
    getSetting('insert_deduplication_token') AS segment,
    now64(3, 'UTC') AS ingested_at,
    $weight AS weight
FROM openinference_spans
WHERE claim = 'openinference.request';
