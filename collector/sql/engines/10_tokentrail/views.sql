-- tokentrail's own spans. tokentrail/semconv.py has their names. The SDK leaves out phase times and preemptions that are 0: it
-- counts both itself. Cached and reasoning tokens are the engine's, and absent ones are not known.

-- Reads the landing table itself: with a route between, the store would not know a segment that an older version inserted.
CREATE OR REPLACE MATERIALIZED VIEW tokentrail_tokens TO new_tokens AS
WITH
    -- tokentrail/semconv.py: a token's span id is so many strides from its request's; the number is the inverse of the stride.
    reinterpretAsUInt64((reinterpretAsUInt64(reverse(span.span_id)) - reinterpretAsUInt64(reverse(span.parent_span_id)))
        * toUInt64(17428512612931826493)) AS strides,
    if(has(span.attributes.key, 'tokentrail.choice.index'), choice + 1, 0) AS answer,
    span.attributes.value[indexOf(span.attributes.key, 'tokentrail.step')] AS sent_step
SELECT
    toStartOfMinute(fromUnixTimestamp64Nano(span.end_time_unix_nano, 'UTC')) AS minute,
    span.trace_id AS trace_id,
    toFixedString(span.parent_span_id, 8) AS request_span_id,
    span.attributes.value.int_value[indexOf(span.attributes.key, 'tokentrail.choice.index')] AS choice,
    -- The SDK sends no index, since the span id tells it.
    multiIf(
        has(span.attributes.key, 'tokentrail.token.index'),
        span.attributes.value.int_value[indexOf(span.attributes.key, 'tokentrail.token.index')],
        bitShiftRight(strides, 32) = answer AND bitAnd(strides, 0xFFFFFFFF) > 0,
        bitAnd(strides, 0xFFFFFFFF) - 1,
        0) AS token_index,
    intDiv(span.end_time_unix_nano - span.start_time_unix_nano, 1000) AS duration_us,
    if(sent_step.value = 'int_value' AND sent_step.int_value >= 0, toUInt64(sent_step.int_value), NULL) AS step
FROM (SELECT arrayJoin(arrayJoin(arrayJoin(resource_spans).scope_spans).spans) AS span FROM otlp_traces)
WHERE span.name = 'tokentrail.token';

-- An insert without spans of tokentrail's does not reach the views below this table, so they are not analysed.
CREATE TABLE IF NOT EXISTS tokentrail_spans AS flat_spans ENGINE = Null;
CREATE OR REPLACE MATERIALIZED VIEW tokentrail_route TO tokentrail_spans AS SELECT * FROM flat_spans WHERE startsWith(claim, 'tokentrail.');

CREATE OR REPLACE MATERIALIZED VIEW tokentrail_requests TO new_requests AS
WITH
    $nanoseconds AS nanoseconds,
    $reported AS reported,
    $counted AS counted,
    -- A client or a proxy cannot see phases and preemptions. Absent ones are not known then.
    kind = 3 OR mapContains(number, 'tokentrail.arrivals') AS from_outside,
    (key -> if(from_outside, reported(key), number[key])) AS of_engine,
    (phase -> accurateCastOrNull(if(phase <= duration_ns, phase, nan), 'UInt64')) AS phase_ns,
    if(mapContains(number, 'gen_ai.request.stream'), number['gen_ai.request.stream'], NULL) AS stream,
    $first_key AS first_key,
    nanoseconds(reported(first_key), duration_ns) AS first_ns,
    if(mapContains(number, 'tokentrail.time_to_last_token'),
        nanoseconds(number['tokentrail.time_to_last_token'], duration_ns), duration_ns) AS last_ns,
    $unless_more AS unless_more,
    counted('gen_ai.usage.input_tokens') AS input,
    counted('gen_ai.usage.output_tokens') AS n,
    counted('gen_ai.usage.cache_read.input_tokens') AS cached,
    counted('gen_ai.usage.reasoning.output_tokens') AS reasoning,
    -- The gaps between tokens are those within a choice, and so is the time.
    if(mapContains(number, 'tokentrail.choices'), number['tokentrail.choices'], 1) AS sent_choices,
    if(mapContains(number, 'tokentrail.time_between_tokens'),
        toFloat64(nanoseconds(number['tokentrail.time_between_tokens'], duration_ns * sent_choices)),
        toFloat64(last_ns) - toFloat64(first_ns)) AS between_ns,
    -- Reasoning that never arrived takes no part in the time between the arrivals.
    ifNull(counted('tokentrail.arrived_tokens'), n) AS arrived,
    -- A single arrival of all tokens has no time between them.
    if(sent_choices >= 1 AND arrived > sent_choices AND n > sent_choices AND between_ns > 0
            AND NOT (mapContains(number, 'tokentrail.arrivals') AND number['tokentrail.arrivals'] <= sent_choices),
        between_ns / (arrived - sent_choices), NULL) AS known_tpot_ns,
    -- Each arrival brought a token or more. Where an engine made all tokens in one step, nothing was waited for.
    multiIf(
        known_tpot_ns IS NOT NULL OR ifNull(n <= sent_choices, false), NULL,
        between_ns > 0, between_ns / nullIf(counted('tokentrail.later_arrivals'), 0),
        between_ns = 0 AND n > sent_choices AND NOT mapContains(number, 'tokentrail.arrivals'), 0,
        NULL) AS tpot_bound_ns,
    reported('tokentrail.perplexity') AS told_perplexity,
    reported('tokentrail.mean_entropy') AS told_entropy,
    reported('tokentrail.sampling.weight') AS sent_weight
SELECT
    end, start, trace_id, span_id, parent_span_id,
    text['gen_ai.response.id'] AS request_id,
    if(resource['tokentrail.engine'] = '', 'tokentrail', resource['tokentrail.engine']) AS engine,
    service, instance, $process_tenant AS process_tenant, variant,
    if(kind = 3, 'client', 'server') AS vantage,
    text['gen_ai.operation.name'] AS operation,
    if(text['gen_ai.request.model'] != '', text['gen_ai.request.model'], text['gen_ai.response.model']) AS model,
    $tenant AS tenant,
    text['tokentrail.slo_class'] AS slo_class,
    $labels_with_stream AS labels,
    multiIf(text['tokentrail.status'] IN ('ok', 'error', 'cancelled', 'unknown'), text['tokentrail.status'], status_code = 2, 'error', 'ok') AS status,
    text['error.type'] AS error_type,
    text['tokentrail.finish_reason'] AS finish_reason,
    unless_more(input, cached, input) AS input_tokens,
    unless_more(n, reasoning, n) AS output_tokens,
    unless_more(cached, cached, input) AS cached_tokens,
    unless_more(reasoning, reasoning, n) AS reasoning_tokens,
    $modalities,
    counted('tokentrail.drafted_tokens') AS drafted_tokens,
    counted('tokentrail.accepted_tokens') AS accepted_tokens,
    if(isFinite(told_perplexity) AND told_perplexity >= 1, told_perplexity, NULL) AS perplexity,
    if(isFinite(told_entropy) AND told_entropy >= 0, told_entropy, NULL) AS mean_entropy,
    accurateCastOrNull(of_engine('tokentrail.preemptions'), 'UInt32') AS preemptions,
    first_ns AS ttft_ns,
    known_tpot_ns AS tpot_ns,
    tpot_bound_ns AS tpot_at_most_ns,
    duration_ns AS e2e_ns,
    phase_ns(of_engine('tokentrail.phase_time.queued')) AS queue_ns,
    phase_ns(of_engine('tokentrail.phase_time.cold_start')) AS cold_start_ns,
    phase_ns(of_engine('tokentrail.phase_time.prefill')) AS prefill_ns,
    phase_ns(of_engine('tokentrail.phase_time.decode')) AS decode_ns,
    phase_ns(of_engine('tokentrail.phase_time.preempted')) AS preempted_ns,
    phase_ns(of_engine('tokentrail.phase_time.kv_transfer')) AS kv_transfer_ns,
    phase_ns(of_engine('tokentrail.phase_time.stalled')) AS stalled_ns,
    nanoseconds(reported('tokentrail.time_to_first_visible_token'), duration_ns) AS first_visible_ns,
    phase_ns(reported('tokentrail.wait_time.batch')) AS wait_batch_ns,
    phase_ns(reported('tokentrail.wait_time.tokens')) AS wait_tokens_ns,
    phase_ns(reported('tokentrail.wait_time.kv')) AS wait_kv_ns,
    phase_ns(reported('tokentrail.wait_time.priority')) AS wait_priority_ns,
    getSetting('insert_deduplication_token') AS segment,
    now64(3, 'UTC') AS ingested_at,
    -- A weight that cannot be one is not known: the request stands for itself.
    if(sent_weight = 0 OR sent_weight BETWEEN 1 AND 1e6, sent_weight, 1) AS weight,
    ifNull(accurateCastOrNull(sent_choices, 'UInt32'), 1) AS choices,
    nanoseconds(reported('tokentrail.longest_gap'), duration_ns) AS gap_ns,
    if(gap_ns > 0, counted('tokentrail.longest_gap.index'), NULL) AS gap_index
FROM tokentrail_spans
WHERE claim = 'tokentrail.request';

CREATE OR REPLACE MATERIALIZED VIEW tokentrail_open_requests TO open_requests AS
WITH
    $nanoseconds AS nanoseconds,
    $reported AS reported,
    $counted AS counted,
    if(mapContains(number, 'gen_ai.request.stream'), number['gen_ai.request.stream'], NULL) AS stream,
    $first_key AS first_key
SELECT
    start,
    if(ended, end + INTERVAL 1 HOUR, end) AS seen,              -- a late announcement does not replace the end
    trace_id,
    toFixedString(if(ended, toString(tokentrail_spans.span_id), parent_span_id), 8) AS span_id,
    text['gen_ai.response.id'] AS request_id,
    if(resource['tokentrail.engine'] = '', 'tokentrail', resource['tokentrail.engine']) AS engine,
    service, instance, $process_tenant AS process_tenant, variant,
    if(kind = 3, 'client', 'server') AS vantage,
    text['gen_ai.operation.name'] AS operation,
    text['gen_ai.request.model'] AS model,
    $tenant AS tenant,
    text['tokentrail.slo_class'] AS slo_class,
    if(ended, map(), $labels_with_stream) AS labels,            -- an end needs none: nobody reads it
    counted('gen_ai.usage.input_tokens') AS input_tokens,
    counted('gen_ai.usage.output_tokens') AS output_tokens,
    nanoseconds(reported(first_key), $longest_ns) AS ttft_ns,
    nanoseconds(reported('tokentrail.time_to_last_token'), $longest_ns) AS last_token_ns,
    nanoseconds(reported('tokentrail.longest_gap'), $longest_ns) AS gap_ns,
    claim = 'tokentrail.request' AS ended,
    -- Its sender's clock may be behind or ahead, and the store's behind by a minute. What is stored a day late is no news.
    if(end < now64(9, 'UTC') - INTERVAL 1 DAY, end,
       greatest(now64(9, 'UTC'), least(end, now64(9, 'UTC') + INTERVAL 1 MINUTE))) AS heard
FROM tokentrail_spans
WHERE claim IN ('tokentrail.request.open', 'tokentrail.request');

CREATE OR REPLACE MATERIALIZED VIEW tokentrail_phases TO phases AS
WITH $reported AS reported, $counted AS counted
SELECT
    toStartOfMinute(end) AS minute,
    trace_id,
    toFixedString(parent_span_id, 8) AS request_span_id,
    start,
    text['tokentrail.phase.name'] AS name,
    duration_ns,
    counted('tokentrail.phase.tokens') AS tokens
FROM tokentrail_spans
WHERE claim = 'tokentrail.phase';

CREATE OR REPLACE MATERIALIZED VIEW tokentrail_steps TO steps AS
WITH $reported AS reported, $counted AS counted
SELECT
    start, service, instance, $process_tenant AS process_tenant, variant,
    accurateCastOrNull(reported('tokentrail.step'), 'UInt64') AS step,
    duration_ns,
    counted('tokentrail.step.prefill_tokens') AS prefill_tokens,
    counted('tokentrail.step.decode_tokens') AS decode_tokens,
    counted('tokentrail.step.running') AS running,
    counted('tokentrail.step.waiting') AS waiting,
    counted('tokentrail.step.preempted') AS preempted,
    counted('tokentrail.step.kv_blocks_used') AS kv_blocks_used,
    counted('tokentrail.step.kv_blocks_total') AS kv_blocks_total,
    counted('tokentrail.step.kv_blocks_evicted') AS kv_blocks_evicted,
    counted('tokentrail.step.waiting_for_batch') AS waiting_for_batch,
    counted('tokentrail.step.waiting_for_tokens') AS waiting_for_tokens,
    counted('tokentrail.step.waiting_for_kv') AS waiting_for_kv,
    counted('tokentrail.step.waiting_for_priority') AS waiting_for_priority,
    counted('tokentrail.step.cached_tokens') AS cached_tokens,
    counted('tokentrail.step.drafted_tokens') AS drafted_tokens,
    counted('tokentrail.step.retries') AS retries,
    counted('tokentrail.step.graph_rows') AS graph_rows,
    accurateCastOrNull(reported('tokentrail.step.device_ns'), 'UInt64') AS device_ns,
    accurateCastOrNull(reported('tokentrail.step.compute_ns'), 'UInt64') AS compute_ns,
    accurateCastOrNull(reported('tokentrail.step.memory_ns'), 'UInt64') AS memory_ns
FROM tokentrail_spans
WHERE claim = 'tokentrail.step';

-- KV-cache events and cold starts are rare, so they have a Null table of their own: most inserts do not reach their views.
CREATE TABLE IF NOT EXISTS tokentrail_events AS flat_spans ENGINE = Null;
CREATE OR REPLACE MATERIALIZED VIEW tokentrail_route_events TO tokentrail_events AS
SELECT * FROM tokentrail_spans WHERE startsWith(claim, 'tokentrail.kv.') OR claim = 'tokentrail.cold_start';

CREATE OR REPLACE MATERIALIZED VIEW tokentrail_kv_events TO kv_events AS
WITH $reported AS reported, $counted AS counted
SELECT
    start, service, instance, $process_tenant AS process_tenant, variant,
    substring(name, length('tokentrail.kv.') + 1) AS kind,
    text['tokentrail.kv.reason'] AS reason,
    counted('tokentrail.kv.blocks') AS blocks,
    accurateCastOrNull(reported('tokentrail.kv.bytes'), 'UInt64') AS bytes,
    duration_ns,
    accurateCastOrNull(reported('tokentrail.step'), 'UInt64') AS step,
    trace_id,
    parent_span_id AS request_span_id,
    if(match(text['tokentrail.kv.beneficiary'], '^[0-9a-f]{32}$$'), text['tokentrail.kv.beneficiary'], '') AS beneficiary,
    getSetting('insert_deduplication_token') AS segment
FROM tokentrail_events
WHERE startsWith(claim, 'tokentrail.kv.');

CREATE OR REPLACE MATERIALIZED VIEW tokentrail_cold_starts TO cold_starts AS
WITH
    $reported AS reported,
    $counted AS counted,
    (limit -> if(mapContains(number, limit) AND number[limit] IN (0, 1), number[limit] = 1, NULL)) AS switched
SELECT
    start, duration_ns, trace_id, span_id, parent_span_id,
    if(resource['tokentrail.engine'] = '', 'tokentrail', resource['tokentrail.engine']) AS engine,
    service, instance, $process_tenant AS process_tenant, variant,
    text['gen_ai.request.model'] AS model,
    substring(name, length('tokentrail.cold_start.') + 1) AS phase,
    if(status_code = 2, 'error', 'ok') AS status,
    text['error.type'] AS error_type,
    getSetting('insert_deduplication_token') AS segment,
    counted('tokentrail.engine.max_seqs') AS max_seqs,
    counted('tokentrail.engine.max_batched_tokens') AS max_batched_tokens,
    counted('tokentrail.engine.block_size') AS block_size,
    counted('tokentrail.engine.kv_blocks') AS kv_blocks,
    counted('tokentrail.engine.watermark_blocks') AS watermark_blocks,
    switched('tokentrail.engine.chunked_prefill') AS chunked_prefill,
    switched('tokentrail.engine.prefix_caching') AS prefix_caching,
    text['tokentrail.engine.policy'] AS policy
FROM tokentrail_events
WHERE claim = 'tokentrail.cold_start';
