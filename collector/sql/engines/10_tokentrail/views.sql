-- tokentrail's own spans. tokentrail/semconv.py has their names. The SDK leaves out phase times and preemptions that are 0.

CREATE OR REPLACE MATERIALIZED VIEW tokentrail_tokens TO tokens AS
SELECT
    toStartOfMinute(fromUnixTimestamp64Nano(span.end_time_unix_nano, 'UTC')) AS minute,
    span.trace_id AS trace_id,
    toFixedString(span.parent_span_id, 8) AS request_span_id,
    -- An SDK before 0.2 sends the second key. The one that is absent adds 0.
    span.attributes.value.int_value[indexOf(span.attributes.key, 'tokentrail.token.index')]
        + span.attributes.value.int_value[indexOf(span.attributes.key, 'gen_ai.token.index')] AS token_index,
    intDiv(span.end_time_unix_nano - span.start_time_unix_nano, 1000) AS duration_us,
    span.attributes.value.int_value[indexOf(span.attributes.key, 'tokentrail.step')] AS step
FROM (SELECT arrayJoin(arrayJoin(arrayJoin(resource_spans).scope_spans).spans) AS span FROM otlp_traces)
WHERE span.name = 'tokentrail.token';

CREATE OR REPLACE MATERIALIZED VIEW tokentrail_requests TO requests AS
WITH
    $nanoseconds AS nanoseconds,
    $reported AS reported,
    (phase -> accurateCastOrNull(if(phase <= duration_ns, phase, nan), 'UInt64')) AS phase_ns,
    $first_key AS first_key,
    nanoseconds(reported(first_key), duration_ns) AS first_ns,
    if(mapContains(number, 'tokentrail.time_to_last_token'),
        nanoseconds(number['tokentrail.time_to_last_token'], duration_ns), duration_ns) AS last_ns,
    accurateCastOrNull(reported('gen_ai.usage.output_tokens'), 'UInt32') AS n,
    -- The gaps between tokens are those within a choice, and so is the time.
    if(mapContains(number, 'tokentrail.choices'), number['tokentrail.choices'], 1) AS choices,
    if(mapContains(number, 'tokentrail.time_between_tokens'),
        toFloat64(nanoseconds(number['tokentrail.time_between_tokens'], duration_ns * choices)),
        toFloat64(last_ns) - toFloat64(first_ns)) AS between_ns
SELECT
    end, start, trace_id, span_id, parent_span_id,
    text['gen_ai.response.id'] AS request_id,
    if(resource['tokentrail.engine'] = '', 'tokentrail', resource['tokentrail.engine']) AS engine,
    service, instance, variant,
    if(kind = 3, 'client', 'server') AS vantage,
    text['gen_ai.operation.name'] AS operation,
    if(text['gen_ai.request.model'] != '', text['gen_ai.request.model'], text['gen_ai.response.model']) AS model,
    text['tokentrail.tenant'] AS tenant,
    text['tokentrail.slo_class'] AS slo_class,
    multiIf(text['tokentrail.status'] IN ('ok', 'error', 'cancelled'), text['tokentrail.status'], status_code = 2, 'error', 'ok') AS status,
    text['error.type'] AS error_type,
    text['tokentrail.finish_reason'] AS finish_reason,
    accurateCastOrNull(reported('gen_ai.usage.input_tokens'), 'UInt32') AS input_tokens,
    n AS output_tokens,
    accurateCastOrNull(number['gen_ai.usage.cache_read.input_tokens'], 'UInt32') AS cached_tokens,
    accurateCastOrNull(number['gen_ai.usage.reasoning.output_tokens'], 'UInt32') AS reasoning_tokens,
    accurateCastOrNull(number['tokentrail.preemptions'], 'UInt32') AS preemptions,
    first_ns AS ttft_ns,
    if(choices >= 1 AND n > choices AND between_ns >= 0, between_ns / (n - choices), NULL) AS tpot_ns,
    duration_ns AS e2e_ns,
    phase_ns(number['tokentrail.phase_time.queued']) AS queue_ns,
    phase_ns(number['tokentrail.phase_time.cold_start']) AS cold_start_ns,
    phase_ns(number['tokentrail.phase_time.prefill']) AS prefill_ns,
    phase_ns(number['tokentrail.phase_time.decode']) AS decode_ns,
    phase_ns(number['tokentrail.phase_time.preempted']) AS preempted_ns,
    phase_ns(number['tokentrail.phase_time.kv_transfer']) AS kv_transfer_ns,
    phase_ns(number['tokentrail.phase_time.stalled']) AS stalled_ns,
    getSetting('insert_deduplication_token') AS segment,
    now64(3, 'UTC') AS ingested_at
FROM flat_spans
WHERE claim = 'tokentrail.request';

CREATE OR REPLACE MATERIALIZED VIEW tokentrail_open_requests TO open_requests AS
WITH
    $nanoseconds AS nanoseconds,
    $reported AS reported,
    $first_key AS first_key
SELECT
    start,
    if(ended, end + INTERVAL 1 HOUR, end) AS seen,              -- a late announcement does not replace the end
    trace_id,
    toFixedString(if(ended, toString(flat_spans.span_id), parent_span_id), 8) AS span_id,
    text['gen_ai.response.id'] AS request_id,
    if(resource['tokentrail.engine'] = '', 'tokentrail', resource['tokentrail.engine']) AS engine,
    service, instance, variant,
    if(kind = 3, 'client', 'server') AS vantage,
    text['gen_ai.operation.name'] AS operation,
    text['gen_ai.request.model'] AS model,
    text['tokentrail.tenant'] AS tenant,
    text['tokentrail.slo_class'] AS slo_class,
    accurateCastOrNull(reported('gen_ai.usage.input_tokens'), 'UInt32') AS input_tokens,
    accurateCastOrNull(reported('gen_ai.usage.output_tokens'), 'UInt32') AS output_tokens,
    nanoseconds(reported(first_key), $longest_ns) AS ttft_ns,
    claim = 'tokentrail.request' AS ended
FROM flat_spans
WHERE claim IN ('tokentrail.request.open', 'tokentrail.request');

CREATE OR REPLACE MATERIALIZED VIEW tokentrail_phases TO phases AS
SELECT
    toStartOfMinute(end) AS minute,
    trace_id,
    toFixedString(parent_span_id, 8) AS request_span_id,
    start,
    text['tokentrail.phase.name'] AS name,
    duration_ns
FROM flat_spans
WHERE claim = 'tokentrail.phase';

-- A count that is not one reads 0 here: only tokentrail's SDK sends steps and KV-cache events.
CREATE OR REPLACE MATERIALIZED VIEW tokentrail_steps TO steps AS
WITH $counted AS counted
SELECT
    start, service, instance, variant,
    if(number['tokentrail.step'] >= 0, number['tokentrail.step'], 0) AS step,
    duration_ns,
    counted(number['tokentrail.step.prefill_tokens']) AS prefill_tokens,
    counted(number['tokentrail.step.decode_tokens']) AS decode_tokens,
    counted(number['tokentrail.step.running']) AS running,
    counted(number['tokentrail.step.waiting']) AS waiting,
    counted(number['tokentrail.step.preempted']) AS preempted,
    counted(number['tokentrail.step.kv_blocks_used']) AS kv_blocks_used,
    counted(number['tokentrail.step.kv_blocks_total']) AS kv_blocks_total,
    counted(number['tokentrail.step.kv_blocks_evicted']) AS kv_blocks_evicted
FROM flat_spans
WHERE claim = 'tokentrail.step';

-- KV-cache events and cold starts are rare, so they have a Null table of their own: most inserts do not reach their views.
CREATE TABLE IF NOT EXISTS tokentrail_events AS flat_spans ENGINE = Null;
CREATE OR REPLACE MATERIALIZED VIEW tokentrail_route_events TO tokentrail_events AS
SELECT * FROM flat_spans WHERE startsWith(claim, 'tokentrail.kv.') OR claim = 'tokentrail.cold_start';

CREATE OR REPLACE MATERIALIZED VIEW tokentrail_kv_events TO kv_events AS
WITH $counted AS counted
SELECT
    start, service, instance, variant,
    substring(name, length('tokentrail.kv.') + 1) AS kind,
    text['tokentrail.kv.reason'] AS reason,
    counted(number['tokentrail.kv.blocks']) AS blocks,
    duration_ns,
    if(number['tokentrail.step'] >= 0, number['tokentrail.step'], 0) AS step,
    trace_id,
    parent_span_id AS request_span_id,
    getSetting('insert_deduplication_token') AS segment
FROM tokentrail_events
WHERE startsWith(claim, 'tokentrail.kv.');

CREATE OR REPLACE MATERIALIZED VIEW tokentrail_cold_starts TO cold_starts AS
SELECT
    start, duration_ns, trace_id, span_id, parent_span_id,
    if(resource['tokentrail.engine'] = '', 'tokentrail', resource['tokentrail.engine']) AS engine,
    service, instance, variant,
    text['gen_ai.request.model'] AS model,
    substring(name, length('tokentrail.cold_start.') + 1) AS phase,
    if(status_code = 2, 'error', 'ok') AS status,
    text['error.type'] AS error_type,
    getSetting('insert_deduplication_token') AS segment
FROM tokentrail_events
WHERE claim = 'tokentrail.cold_start';
