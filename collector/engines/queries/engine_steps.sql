-- The steps of each engine process with its variants, and how many say a thing.
SELECT
    $parts.process, argMax(variant, start) AS variant_now, arraySort(groupUniqArray(1000)(variant)) AS variants,
    toUnixTimestamp64Nano(min(start)) AS first_ns, toUnixTimestamp64Nano(max(start)) AS last_ns,
    countIf(preempted IS NOT NULL) AS preemption, countIf(kv_blocks_used IS NOT NULL) AS kv
FROM steps
WHERE $ended AND $filter
GROUP BY $parts.process
