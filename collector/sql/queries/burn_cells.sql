-- Short stretches of time in which requests ended that can be judged: the sum of their weights, and of the bad ones the sum, the rows
-- and the first end. Stretches are numbered since 1970, so that they are the same whenever they are asked for.
SELECT
    $cell AS cell,
    sum(weight) AS judged, sumIf(weight, NOT $good AS is_bad) AS bad, countIf(is_bad) AS bad_rows,
    toUnixTimestamp64Nano(minIf(end, is_bad)) AS first_bad_ns
FROM requests
WHERE $ended AND $filter AND NOT $unjudged
GROUP BY cell
SETTINGS optimize_move_to_prewhere = 0
