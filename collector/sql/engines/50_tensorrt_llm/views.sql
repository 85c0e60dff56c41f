-- TensorRT-LLM (spans made by its own functions of 2026). Latencies are in seconds, of a monotonic clock, from the arrival at the
-- process that reports them; −1 means not known. A proxy's span is a request with two parts, of the context (prefill) server and of the
-- generation (decode) server. It ends when the stream begins to be sent, so the request ends with its last part.

CREATE TABLE IF NOT EXISTS tensorrt_llm_joined AS joined_spans ENGINE = Null;
CREATE OR REPLACE MATERIALIZED VIEW tensorrt_llm_route_joined TO tensorrt_llm_joined AS
SELECT * FROM joined_spans WHERE startsWith(claim, 'tensorrt_llm.held.');

-- Times are from the request's start. Cuts between phases, in order:
--
--     one server     queued  prefill  decode
--     disaggregated  queued  prefill  queued  kv_transfer  queued  decode
CREATE TABLE IF NOT EXISTS tensorrt_llm_requests_cut
(
    $held_columns,
    first_ns    Nullable(UInt64),
    e2e         UInt64,
    phases      Array(Tuple(name String, offset_ns UInt64, duration_ns UInt64))     -- empty: not known
)
ENGINE = Null;

CREATE OR REPLACE MATERIALIZED VIEW tensorrt_llm_cut TO tensorrt_llm_requests_cut AS
WITH
    -- Nanoseconds from the request's start to a latency that a server reports; NULL if it is not known, or longer than the server's span.
    (server -> toUInt64(greatest(0, dateDiff('nanosecond', server.start, server.end)))) AS length_of,
    ((server, key) -> accurateCastOrNull(
        if(server.number[key] * 1e9 <= length_of(server) + 1e9 AND mapContains(server.number, key) AND server.start >= start,
            round(server.number[key] * 1e9) + dateDiff('nanosecond', start, server.start), nan), 'UInt64')) AS at,
    (name -> arrayFirst(event -> event.name = name, last.events).time) AS time_of,
    toUInt64(greatest(0, dateDiff('nanosecond', start, greatest(start, last.end)))) AS until_end,
    -- A single server has one clock, so a time behind its end is not one.
    arrayMap(cut -> if(servers < 2 AND cut > e2e, NULL, cut),
        [at(first, 'gen_ai.latency.time_in_queue'), at(first, 'gen_ai.latency.time_to_first_token')]) AS cuts_of_first,
    arrayMap(time -> if(time > start, toUInt64(dateDiff('nanosecond', start, time)), NULL),
        [time_of('kv_cache_transfer_start'), time_of('kv_cache_transfer_end')]) AS transfer,
    arrayConcat([toNullable(toUInt64(0))], cuts_of_first, if(servers < 2, [], arrayPushBack(transfer, at(last, 'gen_ai.latency.time_in_queue')))) AS cuts,
    -- Processes have clocks of their own, so a cut is never before the one before it, or behind the end.
    arrayMap(n -> least(e2e, arrayMax(arrayMap(cut -> assumeNotNull(cut), arraySlice(cuts, 1, n)))), arrayEnumerate(cuts)) AS ordered
SELECT
    tensorrt_llm_servers.* EXCEPT (servers, first, last, text, number),
    last.text AS text,
    last.number AS number,
    ifNull(at(last, 'gen_ai.latency.e2e'), until_end) AS e2e,
    if(at(last, 'gen_ai.latency.time_to_first_token') <= e2e, at(last, 'gen_ai.latency.time_to_first_token'), NULL) AS first_ns,
    if(servers = 0 OR arrayExists(cut -> cut IS NULL, cuts), [], arrayFilter(phase -> phase.3 > 0, arrayMap(
        (name, cut, next) -> (name, cut, toUInt64(next - cut)),
        if(servers < 2, ['queued', 'prefill', 'decode'], ['queued', 'prefill', 'queued', 'kv_transfer', 'queued', 'decode']),
        ordered, arrayPushBack(arrayPopFront(ordered), e2e)))) AS phases
FROM
(
    WITH
        claim = 'tensorrt_llm.held.proxy.request' AS is_proxy,
        arrayFilter(part -> part.claim = 'tensorrt_llm.held.server.request', parts) AS found,
        (start, end, claim, text, number, tensorrt_llm_joined.events)::$held_part AS own
    SELECT
        * EXCEPT (parts),
        if(is_proxy, length(found), 1) AS servers,
        if(is_proxy AND notEmpty(found), found[1], own) AS first,
        if(is_proxy AND notEmpty(found), found[-1], own) AS last
    FROM tensorrt_llm_joined
) AS tensorrt_llm_servers;

CREATE OR REPLACE MATERIALIZED VIEW tensorrt_llm_requests TO new_requests AS
WITH
    $reported AS reported,
    $counted AS counted,
    counted('gen_ai.usage.completion_tokens') AS n,
    $end_of AS end_of,
    $status_of_end AS status_of_end,
    $error_of_end AS error_of_end,
    end_of(text['finish_reason']) AS ended,
    (phase -> if(empty(phases), NULL, arraySum(arrayMap(p -> if(p.name = phase, p.duration_ns, 0), phases)))) AS phase_ns
SELECT
    start + toIntervalNanosecond(e2e) AS end,
    start, trace_id, span_id, parent_span_id,
    ifNull(toString(counted('gen_ai.request.id')), text['gen_ai.request.id']) AS request_id,
    'tensorrt_llm' AS engine,
    service, instance, text['process_tenant'] AS process_tenant, variant,
    'server' AS vantage,
    if(text['gen_ai.response.model'] != '', text['gen_ai.response.model'], if(startsWith(service, 'unknown_service'), '', service)) AS model,
    tenant,
    text['tokentrail.slo_class'] AS slo_class,
    $held_labels AS labels,
    status_of_end(false, status_code = 2, ended, false) AS status,
    error_of_end(false, if(text['error.type'] != '', text['error.type'], $exception_in_status), ended, text['finish_reason']) AS error_type,
    text['finish_reason'] AS finish_reason,
    counted('gen_ai.usage.prompt_tokens') AS input_tokens,
    n AS output_tokens,
    first_ns AS ttft_ns,
    if(n > 1, (e2e - first_ns) / (n - 1), NULL) AS tpot_ns,
    e2e AS e2e_ns,
    phase_ns('queued') AS queue_ns,
    phase_ns('prefill') AS prefill_ns,
    phase_ns('decode') AS decode_ns,
    phase_ns('kv_transfer') AS kv_transfer_ns,
    getSetting('insert_deduplication_token') AS segment,
    now64(3, 'UTC') AS ingested_at,
    $weight AS weight
FROM tensorrt_llm_requests_cut;

CREATE OR REPLACE MATERIALIZED VIEW tensorrt_llm_phases TO phases AS
$phases_of_requests
FROM (SELECT trace_id, span_id AS request_span_id, text, start AS request_start, arrayJoin(phases) AS phase FROM tensorrt_llm_requests_cut);
