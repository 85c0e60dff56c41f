-- Langfuse's SDK (recorded with 5.0). Every attribute is a string, most of them with JSON in it.

CREATE TABLE IF NOT EXISTS langfuse_spans AS flat_spans ENGINE = Null;
CREATE OR REPLACE MATERIALIZED VIEW langfuse_route TO langfuse_spans AS
SELECT * REPLACE (if($own_key IN ($wrapper_keys FROM rare_spans WHERE $makes_wrappers), '', rare_spans.claim) AS claim)
FROM rare_spans WHERE rare_spans.claim = 'langfuse.request';

CREATE OR REPLACE MATERIALIZED VIEW langfuse_wrappers TO unclaimed_spans AS
SELECT * FROM langfuse_spans WHERE claim = '';

-- Langfuse's client for openai sets the time of the first chunk for streams alone, and a finish reason for chat streams that
-- have ended. Broken and abandoned streams look alike: no error, no reason.
CREATE OR REPLACE MATERIALIZED VIEW langfuse_requests TO new_requests AS
WITH
    text['langfuse.observation.usage_details'] AS usage,
    (key -> accurateCastOrNull(if(JSONType(usage, key) IN ('Int64', 'UInt64'), JSONExtractFloat(usage, key), nan), 'UInt32')) AS used,
    ((key, part) -> toUInt32OrNull(JSONExtractRaw(usage, key, part))) AS detail,
    -- LangChain's handler and LiteLLM count parts that do not overlap: input and input_cache_read, output and output_reasoning.
    JSONExtractKeysAndValuesRaw(usage) AS counts,
    ((key, whole) -> accurateCastOrNull(used(key) + arraySum(
        count -> if(startsWith(count.1, concat(key, '_')) AND count.1 != whole, toUInt32OrZero(count.2), 0), counts), 'UInt32')) AS parts,
    coalesce(used('completion_tokens'), parts('output', 'output_tokens'), used('output_tokens')) AS n,
    coalesce(detail('completion_tokens_details', 'reasoning_tokens'), detail('output_tokens_details', 'reasoning_tokens'),
        used('output_reasoning'), used('output_reasoning_tokens')) AS reasoning,
    $unless_more AS unless_more,
    $end_of AS end_of,
    $status_of_end AS status_of_end,
    $error_of_end AS error_of_end,
    coalesce(used('prompt_tokens'), parts('input', 'input_tokens'), used('input_tokens')) AS input,
    coalesce(detail('prompt_tokens_details', 'cached_tokens'), detail('input_tokens_details', 'cached_tokens'),
        used('input_cache_read'), used('input_cached_tokens')) AS cached,
    ((old, side, kind) -> coalesce(
        detail(concat(old, '_tokens_details'), concat(kind, '_tokens')), detail(concat(side, '_tokens_details'), concat(kind, '_tokens')),
        used(concat(side, '_', kind)), used(concat(side, '_', kind, '_tokens')))) AS modality,
    ((part, whole) -> if(part > whole, NULL, part)) AS within,
    -- OpenAI's responses. The first event of their streams says that the request was accepted. It brings no token.
    trim(BOTH '"' FROM text['langfuse.observation.metadata.object']) = 'response' AS is_response,
    name = 'OpenAI-generation' AS of_openai_client,
    multiIf(is_response, 'chat', text['langfuse.observation.input'] = '', '',
            startsWith(text['langfuse.observation.input'], '[') OR startsWith(text['langfuse.observation.input'], '{'), 'chat',
            of_openai_client, 'text_completion', '') AS kind_of_call,
    trim(BOTH '"' FROM text['langfuse.observation.completion_start_time']) AS first_text,
    parseDateTime64BestEffortOrNull(first_text, 9, 'UTC') AS first_time,
    if(NOT is_response AND first_time >= start AND first_time <= end, toUnixTimestamp64Nano(assumeNotNull(first_time)) - toUnixTimestamp64Nano(start), NULL)
        AS first_ns,
    trim(BOTH '"' FROM text['langfuse.observation.metadata.finish_reason']) AS reason,
    end_of(reason) AS ended,
    status_code = 2 OR text['langfuse.observation.level'] = 'ERROR' AS failed,
    of_openai_client AND kind_of_call = 'chat' AND first_text != '' AND reason = '' AND n IS NULL AND NOT failed AS is_cancelled,
    multiIf(NOT of_openai_client, NULL, first_text != '', 1, n > 0, 0, NULL) AS stream
SELECT
    end, start, trace_id, span_id, parent_span_id,
    'langfuse' AS engine,
    service, instance, $process_tenant AS process_tenant, variant,
    'client' AS vantage,
    kind_of_call AS operation,
    text['langfuse.observation.model.name'] AS model,
    $tenant AS tenant,
    text['tokentrail.slo_class'] AS slo_class,
    $labels_with_stream AS labels,
    status_of_end(is_cancelled, failed, ended, false) AS status,
    error_of_end(is_cancelled, extract(text['langfuse.observation.status_message'], '^Error code: ([0-9]{3})'), ended, reason) AS error_type,
    reason AS finish_reason,
    unless_more(input, cached, input) AS input_tokens,
    unless_more(n, reasoning, n) AS output_tokens,
    unless_more(cached, cached, input) AS cached_tokens,
    unless_more(reasoning, reasoning, n) AS reasoning_tokens,
    within(modality('prompt', 'input', 'image'), input) AS image_input_tokens,
    within(modality('prompt', 'input', 'audio'), input) AS audio_input_tokens,
    within(modality('completion', 'output', 'image'), n) AS image_output_tokens,
    within(modality('completion', 'output', 'audio'), n) AS audio_output_tokens,
    if(of_openai_client AND NOT mapContains(text, 'langfuse.observation.completion_start_time') AND n > 0, duration_ns, first_ns) AS ttft_ns,
    $tpot_of_chunks AS tpot_ns,
    duration_ns AS e2e_ns,
    getSetting('insert_deduplication_token') AS segment,
    now64(3, 'UTC') AS ingested_at,
    $weight AS weight
FROM langfuse_spans
WHERE claim = 'langfuse.request';
