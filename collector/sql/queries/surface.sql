-- Requests that ended ok and met the E2E threshold, by the largest threshold of each grid that they miss; a grid is
-- ascending nanoseconds and starts with 0, which stands for none. What was not measured misses all. collector.slo.judge says the
-- same for one pair of thresholds.
SELECT
    if(ttft_ns IS NULL, if(output_tokens > 0, {ttft_last:Int64}, 0),
        roundDown(toInt64(greatest(assumeNotNull(ttft_ns), 1)) - 1, {ttft_grid:Array(Int64)})) AS ttft_missed,
    if(tpot_ns IS NULL, if(output_tokens > 1, {tpot_last:Int64}, 0),
        roundDown(toInt64(greatest(ceil(assumeNotNull(tpot_ns)), 1)) - 1, {tpot_grid:Array(Int64)})) AS tpot_missed,
    count() AS n
FROM requests
WHERE $window AND $filter AND $good
GROUP BY ttft_missed, tpot_missed
