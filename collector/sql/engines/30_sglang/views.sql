-- SGLang (recorded with 0.5.23). The API process sends a request's span, and the scheduler the spans below it, one for each
-- decoded token. Times are wall clock, of two processes.

CREATE TABLE IF NOT EXISTS sglang_joined AS joined_spans ENGINE = Null;
CREATE OR REPLACE MATERIALIZED VIEW sglang_route_joined TO sglang_joined AS SELECT * FROM joined_spans WHERE claim = 'sglang.held.request';

-- A request's life is cut where a prefill begins or ends and where the scheduler retracts (preempts) it:
--
--     start   prefill_forward   decode_loop …   retract   prefill_forward   decode_loop …   end
--     queued  prefill           decode          preempted prefill           decode
--
-- Everything before the first prefill counts as queued: tokenisation, the way to the scheduler, `prefill_waiting`. The cuts are
-- clipped to the request, because the clocks of the processes are some µs to ms apart. Without the scheduler's spans the phases
-- are not known.
CREATE TABLE IF NOT EXISTS sglang_requests_cut
(
    $held_columns,
    first_ns    Nullable(UInt64),
    n           Nullable(UInt32),
    phases      Array(Tuple(name String, offset_ns UInt64, duration_ns UInt64)),    -- empty: not known
    preemptions Nullable(UInt32),
    token_ns    Array(UInt64)                                                       -- from the start; empty: not known
)
ENGINE = Null;

CREATE OR REPLACE MATERIALIZED VIEW sglang_cut TO sglang_requests_cut AS
WITH
    $nanoseconds AS nanoseconds,
    $reported AS reported,
    $counted AS counted,
    arrayFilter(part -> part.claim = 'sglang.held.prefill', parts) AS prefills,
    arrayExists(part -> part.claim = 'sglang.held.process' AND part.text['thread_label'] = 'Scheduler', parts) AS scheduled,
    arrayFilter(event -> event.name = 'retract',
        arrayFlatten(arrayMap(part -> if(part.claim = 'sglang.held.process', part.events, []), parts))) AS retractions,
    (time -> toUInt64(greatest(0, least(duration_ns, dateDiff('nanosecond', start, time))))) AS offset,
    -- The number orders cuts of the same time. A prefill without a duration ends where it begins.
    arraySort(arrayConcat(
        [(toUInt64(0), 0, 'queued')],
        arrayMap(part -> (offset(part.start), if(offset(part.start) = offset(part.end), 0, 3), 'prefill'), prefills),
        arrayMap(part -> (offset(part.end), 1, 'decode'), prefills),
        arrayMap(event -> (offset(event.time), 2, 'preempted'), retractions))) AS cuts,
    arrayMap((cut, next) -> (cut.3, cut.1, toUInt64(next - cut.1)), cuts,
        arrayPushBack(arrayMap(cut -> cut.1, arrayPopFront(cuts)), duration_ns)) AS stretches,
    -- Each step of a request decodes one token. A prefill after a retraction makes one too.
    arraySort(arrayConcat(
        arrayMap(part -> offset(part.end), arrayFilter(part -> part.claim = 'sglang.held.token', parts)),
        arrayMap(part -> offset(part.end), arrayPopFront(prefills)))) AS later_ns
SELECT
    * EXCEPT (parts),
    nanoseconds(reported('gen_ai.latency.time_to_first_token'), duration_ns) AS first_ns,
    counted('gen_ai.usage.completion_tokens') AS n,
    if(scheduled AND (notEmpty(prefills) OR n = 0 OR n IS NULL), arrayFilter(stretch -> stretch.3 > 0, stretches), []) AS phases,
    if(scheduled, length(retractions), NULL) AS preemptions,
    if(length(later_ns) + 1 = n AND first_ns IS NOT NULL,
        arrayPushFront(arrayMap(ns -> greatest(ns, assumeNotNull(first_ns)), later_ns), assumeNotNull(first_ns)), []) AS token_ns
FROM sglang_joined;

CREATE OR REPLACE MATERIALIZED VIEW sglang_requests TO new_requests AS
WITH
    $reported AS reported,
    $counted AS counted,
    $end_of AS end_of,
    $status_of_end AS status_of_end,
    $error_of_end AS error_of_end,
    end_of(text['finish_reason']) AS ended,
    $unless_more AS unless_more,
    counted('gen_ai.usage.prompt_tokens') AS input,
    counted('gen_ai.usage.cached_tokens') AS cached,
    (phase -> if(empty(phases), NULL, arraySum(arrayMap(p -> if(p.name = phase, p.duration_ns, 0), phases)))) AS phase_ns,
    arrayMap(ns -> intDiv(ns, 1000), token_ns) AS token_us,
    duration_ns AS whole_ns,
    $gaps_us AS gaps_us
SELECT
    end, start, trace_id, span_id, parent_span_id,
    text['gen_ai.request.id'] AS request_id,
    'sglang' AS engine,
    service, instance, text['process_tenant'] AS process_tenant, variant,
    'server' AS vantage,
    text['gen_ai.response.model'] AS model,
    tenant,
    text['tokentrail.slo_class'] AS slo_class,
    $held_labels AS labels,
    -- A client that leaves is an abort to SGLang. Nothing in the span tells it from an abort of the server's that has no status.
    status_of_end(status_code != 2 AND text['finish_reason'] = 'abort', status_code = 2, ended, false) AS status,
    error_of_end(status = 'cancelled', if(text['error.type'] != '', text['error.type'], $exception_in_status), ended, text['finish_reason']) AS error_type,
    text['finish_reason'] AS finish_reason,
    unless_more(input, cached, input) AS input_tokens,
    n AS output_tokens,
    unless_more(cached, cached, input) AS cached_tokens,
    preemptions,
    first_ns AS ttft_ns,
    if(n > 1, (duration_ns - first_ns) / (n - 1), NULL) AS tpot_ns,
    duration_ns AS e2e_ns,
    phase_ns('queued') AS queue_ns,
    phase_ns('prefill') AS prefill_ns,
    phase_ns('decode') AS decode_ns,
    phase_ns('preempted') AS preempted_ns,
    getSetting('insert_deduplication_token') AS segment,
    now64(3, 'UTC') AS ingested_at,
    if(empty(token_us), NULL, 1000 * toUInt64(arrayMax(gaps_us))) AS gap_ns,
    if(gap_ns > 0, indexOf(gaps_us, arrayMax(gaps_us)), NULL) AS gap_index,
    $weight AS weight
FROM sglang_requests_cut;

CREATE OR REPLACE MATERIALIZED VIEW sglang_phases TO phases AS
$phases_of_requests
FROM (SELECT trace_id, span_id AS request_span_id, text, start AS request_start, arrayJoin(phases) AS phase FROM sglang_requests_cut);

CREATE OR REPLACE MATERIALIZED VIEW sglang_tokens TO new_tokens AS
SELECT
    toStartOfMinute(start + toIntervalNanosecond(ns)) AS minute,
    trace_id,
    span_id AS request_span_id,
    $tenant_hash AS tenant_hash,
    number - 1 AS token_index,
    intDiv(ns, 1000) - intDiv(token_ns[number - 1], 1000) AS duration_us        -- element 0 of an array is 0
FROM (SELECT start, trace_id, span_id, token_ns, text['process_tenant'] AS process_tenant FROM sglang_requests_cut)
ARRAY JOIN token_ns AS ns, arrayEnumerate(token_ns) AS number;
