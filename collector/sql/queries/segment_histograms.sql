-- Latencies of requests that ended ok, and E2E of those that failed, by the largest bucket edge that they exceed. Edges are ascending nanoseconds and
-- start with 0. The latest request of each bucket is its exemplar. A sampled request adds its weight.
SELECT
    model, operation, engine, service, variant, tenant, slo_class, vantage, metric, over_ns,
    if(status = 'ok', '', if(error_type = '', '_OTHER', error_type)) AS error,
    sum(weight) AS n,
    sum(weight * value) AS sum_ns,
    lower(hex(argMax(trace_id, end))) AS trace,
    argMax(value, end) AS value_ns,
    toUnixTimestamp64Nano(max(end)) AS at_ns
FROM requests
ARRAY JOIN
    ['ttft', 'tpot', 'e2e'] AS metric,
    [toFloat64(ttft_ns), tpot_ns, toFloat64(e2e_ns)] AS value,
    [
        roundDown(toInt64(greatest(ifNull(ttft_ns, 1), 1)) - 1, {ttft_edges:Array(Int64)}),
        roundDown(toInt64(greatest(ceil(ifNull(tpot_ns, 1)), 1)) - 1, {tpot_edges:Array(Int64)}),
        roundDown(toInt64(greatest(e2e_ns, 1)) - 1, {e2e_edges:Array(Int64)})
    ] AS over_ns
WHERE $parts.in_segments AND (status = 'ok' OR status = 'error' AND metric = 'e2e') AND value IS NOT NULL
GROUP BY ALL
