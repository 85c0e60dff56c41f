-- How much the totals of each process grew, by bucket. A total that fell began again at 0. The first value of a series is no
-- growth, unless its process had samples before: then the total began after them, at 0. When several collectors scrape a
-- process, they see the same growth: in each five minutes, the one with the most samples counts.
SELECT
    service, instance, name,
    intDiv(toUnixTimestamp64Nano(CAST(time, 'DateTime64(9)')), {step_ns:Int64}) * {step_ns:Int64} AS bucket_ns,
    sum(multiIf(kind = 'delta', value, value < previous, value, value - previous)) AS growth
FROM
(
    SELECT
        *,
        ifNull(earlier, if(time > process_began, 0, value)) AS previous,
        argMax(scraper, (samples_of_scraper, scraper)) OVER (PARTITION BY service, instance, five_minutes) AS best_scraper
    FROM
    (
        SELECT
            time, service, instance, scraper, name, kind, value,
            intDiv(toUnixTimestamp(time), 300) AS five_minutes,
            count() OVER (PARTITION BY service, instance, five_minutes, scraper) AS samples_of_scraper,
            min(time) OVER (PARTITION BY service, instance, scraper) AS process_began,
            lagInFrame(toNullable(value)) OVER
                (PARTITION BY name, service, instance, series ORDER BY time ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS earlier
        FROM samples
        WHERE $parts.sampled AND (name IN {names:Array(String)} OR name = 'running')
    )
)
WHERE time >= fromUnixTimestamp64Nano({start_ns:Int64}) AND kind != 'gauge' AND scraper = best_scraper
GROUP BY service, instance, name, bucket_ns
ORDER BY service, instance, name, bucket_ns
