-- The latencies of each request that ended ok, of few. NaN: not known, or it cannot exist.
SELECT ifNull(toFloat64(ttft_ns), nan), ifNull(tpot_ns, nan), toFloat64(e2e_ns), ifNull(toFloat64(queue_ns), nan), ifNull(toFloat64(nullIf(gap_ns, 0)), nan)
FROM requests
PREWHERE $ended
WHERE $filter AND status = 'ok'
LIMIT {limit:UInt32}
