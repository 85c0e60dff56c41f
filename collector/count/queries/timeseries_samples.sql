-- The highest KV-cache use of any sampled process, and the sum over processes of each one's largest batch and queue, by bucket.
-- Each process is sampled at moments of its own. In a bucket without a sample of it, its last value holds until its next sample or its
-- first failed scrape, for two and a half of its intervals at most; and its first value holds for one interval before. Its interval is
-- the median of the times between its samples.
--     sampled every 30 s, buckets of 10 s     4 . . 7 . . down  →  4 4 4 7 7 7 -
-- `sampled`: the bucket has a sample of some process. The others are for buckets in which spans tell of other processes.
-- no rows without: samples
WITH intDiv({start_ns:Int64}, {step_ns:Int64}) * {step_ns:Int64} AS first_bucket_ns
SELECT
    holds.1 AS bucket_ns,
    max(holds.2) AS sampled,
    maxOrNullIf(holds.3, metric = 'kv_usage') AS kv_usage,
    sumOrNullIf(holds.3, metric = 'running') AS running,
    sumOrNullIf(holds.3, metric = 'waiting') AS waiting
FROM
(
    -- A process and metric has one value in each bucket: that of its own samples, or else one that holds from others.
    SELECT
        metric,
        arrayJoin(arrayConcat(
            [(own_bucket_ns, true, max(value))],
            arrayMap(b -> (b, false, argMin(value, ns)), range(
                greatest(first_bucket_ns, intDiv(argMin(since_ns, ns) + {step_ns:Int64} - 1, {step_ns:Int64}) * {step_ns:Int64}),
                own_bucket_ns, {step_ns:Int64})),
            arrayMap(b -> (b, false, argMax(value, ns)), range(
                greatest(first_bucket_ns, own_bucket_ns + {step_ns:Int64}),
                if(argMax(until_ns, ns) > {start_ns:Int64}, least(argMax(until_ns, ns), argMax(next_bucket_ns, ns)), 0), {step_ns:Int64})))) AS holds
    FROM
    (
        SELECT
            *,
            if(fails_before, ns, greatest(ns - interval_ns, lagInFrame(until_ns, 1, 0)
                OVER (moments ROWS BETWEEN 1 PRECEDING AND CURRENT ROW))) AS since_ns,
            leadInFrame(own_bucket_ns, 1, {end_ns:Int64}) OVER (moments ROWS BETWEEN CURRENT ROW AND 1 FOLLOWING) AS next_bucket_ns
        FROM
        (
            SELECT
                $parts.process, metric, ns, assumeNotNull(total) AS value, fails_before,
                if(ns < {start_ns:Int64}, -1, intDiv(ns, {step_ns:Int64})) * {step_ns:Int64} AS own_bucket_ns,
                least(ifNull(median_ns, 0), {before_ns:Int64}) AS interval_ns,
                least(ns + least(intDiv(interval_ns * 5, 2), {before_ns:Int64}), fails_ns, {end_ns:Int64}) AS until_ns
            FROM
            (
                SELECT
                    *,
                    quantileExactLow(0.5)(ns - before_ns) OVER (PARTITION BY $parts.process, scraper, metric) AS median_ns
                FROM
                (
                    SELECT
                        *,
                        lagInFrame(toNullable(ns)) OVER (moments ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS before_ns,
                        lagInFrame(isNull(total)) OVER (moments ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS fails_before,
                        leadInFrame(if(isNull(total), ns, {end_ns:Int64}), 1, {end_ns:Int64})
                            OVER (moments ROWS BETWEEN CURRENT ROW AND 1 FOLLOWING) AS fails_ns
                    FROM
                    (
                        SELECT
                            toUnixTimestamp64Nano(CAST(time, 'DateTime64(9)')) AS ns, $parts.process, scraper,
                            arrayJoin(if(name = 'up', ['kv_usage', 'running', 'waiting'], [toString(name)])) AS metric,
                            if(any(name) = 'up', NULL, if(metric = 'kv_usage', max(value), sum(value))) AS total
                        FROM samples
                        WHERE $parts.sampled AND (name IN ('kv_usage', 'running', 'waiting') OR (name = 'up' AND value = 0))
                        GROUP BY time, $parts.process, scraper, metric
                    )
                    WINDOW moments AS (PARTITION BY $parts.process, scraper, metric ORDER BY ns)
                )
            )
            WHERE isNotNull(total)
        )
        WINDOW moments AS (PARTITION BY $parts.process, metric ORDER BY ns)
    )
    GROUP BY $parts.process, metric, own_bucket_ns
)
WHERE holds.1 >= first_bucket_ns
GROUP BY bucket_ns
ORDER BY bucket_ns
