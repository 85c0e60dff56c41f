-- Requests that WAL segments brought: a row for those with the same labels that neither a bucket of a histogram nor an SLO tells
-- apart, the latest row last. `over` of a latency is the largest bucket edge that it exceeds, NULL when it is not known. Edges are
-- ascending nanoseconds and start with 0. A sampled request adds its weight; a sum of unknown numbers alone is NULL. `phases` are nanoseconds. `after_arrival` is
-- of each process: the largest time from a segment's beginning, which its id tells, to the end of one of its requests; negative for most.
SELECT
    model, operation, engine, service, process_tenant, variant, tenant, slo_class, vantage, status, error_type,
    $cell AS cell, $tenant_group AS tenant_group,
    roundDown(toInt64(ttft_ns) - 1, {ttft_edges:Array(Int64)}) AS ttft_over,
    -- toInt64 fails for a NULL that a view made of a division by 0: ClickHouse stores the infinity below it.
    roundDown(accurateCastOrNull(ceil(tpot_ns), 'Int64') - 1, {tpot_edges:Array(Int64)}) AS tpot_over,
    roundDown(toInt64(e2e_ns) - 1, {e2e_edges:Array(Int64)}) AS e2e_over,
    sum(weight) AS n,
    sum(weight * input_tokens) AS tokens_in,
    sum(weight * output_tokens) AS tokens_out,
    sum(weight * cached_tokens) AS tokens_cached,
    sum(least(toUInt64OrZero(labels['_cut']), 1024)) AS labels_cut,
    sum(weight * ttft_ns) AS ttft_sum, sum(weight * tpot_ns) AS tpot_sum, sum(weight * e2e_ns) AS e2e_sum,
    $phases AS phases,
    argMax((trace_id, ttft_ns, tpot_ns, e2e_ns), end) AS latest,
    toUnixTimestamp64Nano(max(end)) AS at_ns,
    maxMap(map(toString(instance), toUnixTimestamp64Nano(end) - toInt64OrZero(substring(segment, 1, 20)))) AS after_arrival
FROM requests
WHERE $parts.in_segments
GROUP BY ALL
ORDER BY at_ns
