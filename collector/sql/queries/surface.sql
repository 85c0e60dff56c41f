-- Requests that ended ok and met the E2E threshold, counted by the largest threshold of each grid that they miss. A grid is
-- ascending nanoseconds and starts with 0, which stands for "misses none". A request whose TTFT or TPOT is not known misses none by
-- it and is `undetermined`. collector.slo.judge says the same for one pair of thresholds. Example in ms, with ttft_grid
-- [0, 100, 500] and tpot_grid [0, 50]:
--   request A, TTFT 300 and TPOT 20, misses TTFT ≤ 100 only                        → ttft_missed 100, tpot_missed 0
--   request B, TTFT 500 and TPOT 51, misses TTFT ≤ 100 (500 ≤ 500) and TPOT ≤ 50   → ttft_missed 100, tpot_missed 50
--   request C, TTFT not known and TPOT 51, misses TPOT ≤ 50                        → ttft_missed 0, tpot_missed 50, undetermined
--   collector.api.surface sums: one request (A) meets the pair (500, 50), none meets (100, 50)
SELECT
    roundDown(toInt64(greatest(ifNull(ttft_ns, 1), 1)) - 1, {ttft_grid:Array(Int64)}) AS ttft_missed,
    roundDown(toInt64(greatest(ceil(ifNull(tpot_ns, 1)), 1)) - 1, {tpot_grid:Array(Int64)}) AS tpot_missed,
    (ttft_ns IS NULL AND ifNull(output_tokens > 0, true)) OR (tpot_ns IS NULL AND ifNull(output_tokens > 1, true)) AS undetermined,
    count() AS n
FROM requests
WHERE $parts.ended_in_window AND $filter AND $good
GROUP BY ttft_missed, tpot_missed, undetermined
