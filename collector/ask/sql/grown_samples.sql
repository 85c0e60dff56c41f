-- Samples of totals, each with the one before it. `since_zero`: all of the value has grown since then, because the total fell
-- (it began again at 0), is a delta, or appeared after its process did. The first value of a process is no growth, and neither are those of
-- a scrape in which all series are new, because the labels of its target have changed. When several
-- collectors scrape a process, they see the same growth: in each five minutes, the one with the most samples counts. One that was away for
-- more than five minutes is the last choice: its first sample also has the growth of that time, which the others have counted.
SELECT
    * EXCEPT (before_time, before_value, before_bounds),
    ifNull(before_value, value) AS earlier,
    kind = 'delta' OR if(isNull(before_value), time > process_began AND (scraper = '' OR goes_on), value < before_value OR bounds != before_bounds) AS since_zero
FROM
(
    SELECT *, argMax(scraper, (was_there, samples_of_scraper, scraper)) OVER (PARTITION BY $parts.process, five_minutes) AS best_scraper
    FROM
    (
        SELECT
            *,
            max(isNotNull(before_value)) OVER (PARTITION BY $parts.process, scraper, time) AS goes_on,
            min(ifNull(dateDiff('second', before_time, time) <= 300, true)) OVER (PARTITION BY $parts.process, five_minutes, scraper) AS was_there
        FROM
        (
            SELECT
                time, $parts.process, scraper, engine, name, kind, value, bounds,
                intDiv(toUnixTimestamp(time), 300) AS five_minutes,
                count() OVER (PARTITION BY $parts.process, five_minutes, scraper) AS samples_of_scraper,
                min(time) OVER (PARTITION BY $parts.process, scraper) AS process_began,
                lagInFrame(toNullable(time)) OVER last AS before_time,
                lagInFrame(toNullable(value)) OVER last AS before_value,
                lagInFrame(bounds) OVER last AS before_bounds
            FROM samples
            WHERE $parts.sampled AND (name IN {names:Array(String)} OR name = 'running')
            WINDOW last AS (PARTITION BY name, $parts.process, series ORDER BY time ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)
        )
    )
)
WHERE time >= fromUnixTimestamp64Nano({start_ns:Int64}) AND kind != 'gauge' AND scraper = best_scraper
