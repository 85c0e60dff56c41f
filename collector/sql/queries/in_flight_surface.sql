-- As surface.sql, for requests in flight: the largest thresholds that they are past already.
SELECT
    roundDown(toInt64(greatest(least(ifNull(ttft_ns, elapsed_ns), elapsed_ns), 1)) - 1, {ttft_grid:Array(Int64)}) AS ttft_missed,
    if(no_progress AND ttft_ns IS NOT NULL,
        roundDown(toInt64(greatest(ceil((elapsed_ns - assumeNotNull(ttft_ns)) / (greatest(output_tokens, 2) - 1)), 1)) - 1,
            {tpot_grid:Array(Int64)}), 0) AS tpot_missed,
    $bad_already AS lasts_too_long,
    count() AS n
FROM ($parts.in_flight)
WHERE NOT is_lost
GROUP BY ttft_missed, tpot_missed, lasts_too_long
