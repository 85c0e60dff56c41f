-- A request that ends just now, with a token (query_10m.py).
INSERT INTO requests (end, start, trace_id, span_id, engine, service, instance, vantage, model, tenant, slo_class, status,
    input_tokens, output_tokens, ttft_ns, tpot_ns, e2e_ns, queue_ns, segment, ingested_at)
SELECT
    fromUnixTimestamp64Nano({now_ns:Int64} - 1), fromUnixTimestamp64Nano({now_ns:Int64} - 1000000001),
    reinterpretAsFixedString(generateUUIDv4()), reinterpretAsFixedString(rand64()), 'tokentrail', 'engine', 'i-0', 'server', 'model',
    'tenant-0', 'chat', 'ok', 200, 2, 100000000, 900000000, 1000000000, 1000000, 'arrived', fromUnixTimestamp64Nano({now_ns:Int64});

INSERT INTO tokens (minute, trace_id, request_span_id, token_index, duration_us, step)
SELECT toStartOfMinute(end), trace_id, span_id, 1, 900000, 1
FROM requests
WHERE end = fromUnixTimestamp64Nano({now_ns:Int64} - 1) AND segment = 'arrived'
LIMIT 1;
