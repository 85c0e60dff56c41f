-- The middle half of the latencies that are known, of requests that ended ok, in µs, and a percentile of one of them.
SELECT
    $ttft_quartiles AS ttft, $tpot_quartiles AS tpot, $percentile AS percentile,
    countIf($ttft_known) AS ttft_known, countIf($tpot_known) AS tpot_known, countIf($known) AS known
FROM requests
WHERE $parts.ended_in_window AND $filter
