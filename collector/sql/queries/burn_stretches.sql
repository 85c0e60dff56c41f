-- Stretches of time of the same length, the newest first, in which requests ended that can be judged: their number, how many of them
-- were bad, and when the first bad one ended.
SELECT
    intDiv({end_ns:Int64} - toUnixTimestamp64Nano(end), {length_ns:Int64}) AS age,
    sum(weight) AS judged, sumIf(weight, NOT $good) AS bad, toUnixTimestamp64Nano(minIf(end, NOT $good)) AS first_bad_ns
FROM requests
WHERE $parts.ended_in_window AND $filter AND NOT $unjudged
GROUP BY age
ORDER BY age
