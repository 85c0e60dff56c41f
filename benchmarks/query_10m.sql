-- The rows of query_10m.py, made inside ClickHouse. A statement that names a day runs once per day (UTC), and leaves one part of
-- it, as merges do: {day_ns} is the day's start, and {count} requests ended on it, from number {first} on. Request 0 is the newest.

INSERT INTO requests (end, start, trace_id, span_id, engine, service, instance, vantage, model, tenant, slo_class, status,
    input_tokens, output_tokens, ttft_ns, tpot_ns, e2e_ns, queue_ns, segment, ingested_at)
WITH
    {now_ns:Int64} - {apart_ns:Int64} * toInt64(number) - 1 AS end_ns,
    toUInt64(exp(randNormal(18.2, 0.9, number))) AS first_ns,
    exp(randNormal(17.2, 0.5, number + 1)) AS each_ns,
    toUInt32(1 + rand(number + 2) % (2 * {tokens:UInt32} - 1)) AS n,
    toUInt64(first_ns + each_ns * (n - 1)) AS whole_ns
SELECT
    fromUnixTimestamp64Nano(end_ns), fromUnixTimestamp64Nano(end_ns - toInt64(whole_ns)),
    sipHash128(number), reinterpretAsFixedString(sipHash64(number)),
    'tokentrail', 'engine', concat('i-', toString(number % 8)), 'server', 'model', concat('tenant-', toString(number % 20)),
    ['chat', 'chat', 'completion', 'batch'][1 + rand(number + 3) % 4],
    multiIf(rand(number + 4) % 200 = 0, 'error', rand(number + 5) % 100 = 0, 'cancelled', 'ok'),
    rand(number + 6) % 2000, n, first_ns, if(n > 1, each_ns, NULL), whole_ns, intDiv(first_ns, 3),
    concat('segment-', toString(intDiv(number, 1000))), fromUnixTimestamp64Nano(end_ns)
FROM numbers({first:UInt64}, {count:UInt64});

-- Where the time of each went: of twenty requests, seventeen are explained by their steps, and the others by less, down to nothing. The
-- parts add up to the request's latencies; half of the causes took no time of a request, as in real rows.
INSERT INTO causes (end, request_key, ingested_at, engine, service, instance, process_tenant, variant, vantage, operation, model, tenant,
    slo_class, status, error_type, output_tokens, weight, first_token, tpot_more_us, tpot_is_bound,
    ttft_wait_batch_us, ttft_wait_kv_us, ttft_own_prompt_us, ttft_others_prompts_us, ttft_stall_us, ttft_unexplained_us,
    rest_others_prompts_us, rest_batch_us, rest_alone_us, rest_preempted_us, rest_drift_us, rest_gap_us, rest_unexplained_us,
    inflicted_us, error_permille, level, model_at, version)
WITH
    toUInt32(cityHash64(trace_id, span_id)) AS key,
    multiIf(key % 20 = 0, 'none', key % 20 = 1, 'phases', key % 20 = 2, 'estimated', 'steps') AS far,
    if(far = 'none', 0, toUInt32(key % 7)) AS part,
    e2e_us - ttft_us AS rest_us,
    intDiv(ttft_us, 16) AS first_part, intDiv(rest_us, 16) AS rest_part
SELECT
    end, key, ingested_at, engine, service, instance, process_tenant, variant, vantage, operation, model, tenant,
    slo_class, status, error_type, output_tokens, weight, 'known',
    toUInt32(tpot_us - if(output_tokens > 1, intDiv(rest_us + output_tokens - 2, output_tokens - 1), 0)), false,
    first_part * part, first_part * intDiv(part, 2),
    if(far = 'none', 0, ttft_us - first_part * (part + intDiv(part, 2) + intDiv(part, 3))), first_part * intDiv(part, 3), 0,
    if(far = 'none', ttft_us, 0),
    rest_part * intDiv(part, 3), rest_part * part,
    if(far = 'none', 0, rest_us - rest_part * (intDiv(part, 3) + part + intDiv(part, 6))), 0, 0, rest_part * intDiv(part, 6),
    if(far = 'none', rest_us, 0),
    first_part * intDiv(part, 4), 30, far, toStartOfInterval(end, INTERVAL 10 MINUTE), 1
FROM requests
WHERE end >= fromUnixTimestamp64Nano({day_ns:Int64}) AND end < fromUnixTimestamp64Nano({day_ns:Int64} + 86400000000000);

-- As a collector that has run for these days leaves it: past days are cleaned up, the present one is not. 64 requests are in flight.
INSERT INTO open_requests (start, seen, trace_id, span_id, engine, service, instance, vantage, model, tenant, slo_class, output_tokens, ended)
SELECT start, end + INTERVAL 1 HOUR, trace_id, span_id, engine, service, instance, vantage, model, tenant, slo_class, NULL, 1
FROM requests
WHERE start >= toStartOfDay(fromUnixTimestamp64Nano({now_ns:Int64}))
UNION ALL
SELECT
    fromUnixTimestamp64Nano({now_ns:Int64} - 10000000 * toInt64(number + 1)), fromUnixTimestamp64Nano({now_ns:Int64}),
    sipHash128(number, 'open'), reinterpretAsFixedString(sipHash64(number)), 'tokentrail', 'engine',
    concat('i-', toString(number % 8)), 'server', 'model', '', 'chat', 0, 0
FROM numbers(64);

-- Sorted as the table is, so that the insert need not sort.
INSERT INTO tokens (minute, trace_id, request_span_id, token_index, duration_us, step)
SELECT
    minute, trace_id, span_id, index AS token_index,
    if(index = 0, intDiv(ttft_ns, 1000), toUInt64(exp(randNormal(10.3, 0.5, index)))), toUInt64(index)
FROM
(
    SELECT toStartOfMinute(end) AS minute, trace_id, span_id, ttft_ns, output_tokens
    FROM requests
    WHERE end >= fromUnixTimestamp64Nano({day_ns:Int64}) AND end < fromUnixTimestamp64Nano({day_ns:Int64} + 86400000000000)
    ORDER BY minute, trace_id, span_id
)
ARRAY JOIN range(assumeNotNull(output_tokens)) AS index;

-- A day of steps of eight processes, one in 100 ms at ten million requests.
INSERT INTO steps (start, service, instance, step, running, kv_blocks_used, kv_blocks_total)
SELECT
    fromUnixTimestamp64Nano({now_ns:Int64} - intDiv(86400000000000, intDiv({rows:Int64}, 10)) * toInt64(number)),
    'engine', concat('i-', toString(number % 8)), number, 32, 500, 1000
FROM numbers(intDiv({rows:UInt64}, 10));

-- The requests as OpenTelemetry's ClickHouse exporter stores their spans (otel_traces.sql).
INSERT INTO otel_traces (Timestamp, TraceId, SpanId, SpanName, SpanKind, ServiceName, ResourceAttributes, ScopeName, SpanAttributes,
    Duration, StatusCode)
SELECT
    start, lower(hex(trace_id)), lower(hex(span_id)), 'chat model', 'Server', service,
    map('service.name', toString(service), 'service.instance.id', toString(instance)), 'tokentrail',
    map('gen_ai.operation.name', 'chat', 'gen_ai.request.model', toString(model), 'tokentrail.tenant', toString(tenant),
        'tokentrail.slo_class', toString(slo_class), 'gen_ai.usage.input_tokens', toString(input_tokens),
        'gen_ai.usage.output_tokens', toString(output_tokens), 'tokentrail.time_to_first_token', toString(ttft_ns / 1e9),
        'tokentrail.time_per_output_token', ifNull(toString(tpot_ns / 1e9), '')),
    e2e_ns, if(status = 'error', 'Error', 'Ok')
FROM requests
WHERE end >= fromUnixTimestamp64Nano({day_ns:Int64}) AND end < fromUnixTimestamp64Nano({day_ns:Int64} + 86400000000000);
