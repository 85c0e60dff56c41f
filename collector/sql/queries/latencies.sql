-- Exact, of requests that ended ok. A NULL (no token, fewer than two tokens, the engine does not report it) is not counted.
SELECT
    countIf(ttft_ns IS NOT NULL) AS ttft_count,
    avg(ttft_ns) AS ttft_mean,
    quantilesExactInclusive(0.5, 0.9, 0.95, 0.99, 0.999)(ttft_ns) AS ttft_quantiles,
    max(ttft_ns) AS ttft_max,
    countIf(tpot_ns IS NOT NULL) AS tpot_count,
    avg(tpot_ns) AS tpot_mean,
    quantilesExactInclusive(0.5, 0.9, 0.95, 0.99, 0.999)(tpot_ns) AS tpot_quantiles,
    max(tpot_ns) AS tpot_max,
    count() AS e2e_count,
    avg(e2e_ns) AS e2e_mean,
    quantilesExactInclusive(0.5, 0.9, 0.95, 0.99, 0.999)(e2e_ns) AS e2e_quantiles,
    max(e2e_ns) AS e2e_max,
    countIf(queue_ns IS NOT NULL) AS queue_count,
    avg(queue_ns) AS queue_mean,
    quantilesExactInclusive(0.5, 0.9, 0.95, 0.99, 0.999)(queue_ns) AS queue_quantiles,
    max(queue_ns) AS queue_max
FROM requests
WHERE $parts.ended_in_window AND $filter AND status = 'ok'
