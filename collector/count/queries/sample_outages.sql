-- Stretches in which every scrape of a process failed, from the first failure to the first success or the newest scrape.
-- `since_first`: the first scrape that was read had failed, so it may have begun before.
-- no rows without: samples
SELECT
    $parts.process, scraper,
    any(product) AS engine,
    toUnixTimestamp64Nano(CAST(min(time), 'DateTime64(9)')) AS began_ns,
    toUnixTimestamp64Nano(CAST(max(time), 'DateTime64(9)')) AS last_ns,
    max(stretch) = any(last_stretch) AS lasts,
    stretch = 0 AS since_first,
    count() AS scrapes,
    argMax(reason, time) AS last_reason
FROM
(
    SELECT *, max(stretch) OVER (PARTITION BY $parts.process, scraper) AS last_stretch
    FROM
    (
        SELECT
            time, $parts.process, scraper, engine AS product, value, labels['reason'] AS reason,
            sum(value) OVER (PARTITION BY $parts.process, scraper ORDER BY time ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
                AS stretch
        FROM samples
        WHERE $parts.sampled AND name = 'up'
    )
)
WHERE value = 0
GROUP BY $parts.process, scraper, stretch
HAVING last_ns - began_ns >= {least_ns:Int64} AND last_ns >= {start_ns:Int64}
ORDER BY last_ns DESC, $parts.process, scraper
LIMIT {limit:UInt32}
