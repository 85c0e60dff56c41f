-- Stretches in which a process had requests and none of its totals of tokens and steps grew. A stretch begins at the last
-- growth, or at the last time without requests, and ends when there is growth again, or at the newest sample.
-- `since_first`: it begins at the first sample that was read, so it may have begun before.
-- no rows without: samples
SELECT
    $parts.process, scraper,
    any(engine) AS product,
    toUnixTimestamp64Nano(CAST(min(time), 'DateTime64(9)')) AS began_ns,
    toUnixTimestamp64Nano(CAST(max(time), 'DateTime64(9)')) AS last_ns,
    max(stretch) = any(last_stretch) AS lasts,
    stretch = 1 AS since_first,
    argMax(running, time) AS running_then,
    argMax(waiting, time) AS waiting_then
FROM
(
    SELECT *, max(stretch) OVER (PARTITION BY $parts.process, scraper) AS last_stretch
    FROM
    (
        SELECT
            *,
            sum(moved) OVER (PARTITION BY $parts.process, scraper ORDER BY time ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
                AS stretch
        FROM
        (
            SELECT
                *,
                running + waiting = 0 OR growth > 0
                    OR totals != lagInFrame(totals, 1, -1.)
                        OVER (PARTITION BY $parts.process, scraper ORDER BY time ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)
                    AS moved
            FROM
            (
                SELECT
                    time, $parts.process, scraper,
                    any(samples.engine) AS engine,
                    sumIf(value, name = 'running') AS running,
                    sumIf(value, name = 'waiting') AS waiting,
                    sumIf(value, kind = 'counter') AS totals,
                    sumIf(value, kind = 'delta') AS growth
                FROM samples
                WHERE $parts.sampled AND name IN {names:Array(String)}
                GROUP BY time, $parts.process, scraper
                HAVING countIf(kind = 'gauge') > 0 AND countIf(kind != 'gauge') > 0
            )
        )
    )
)
GROUP BY $parts.process, scraper, stretch
HAVING last_ns - began_ns >= {least_ns:Int64} AND last_ns >= {start_ns:Int64}
ORDER BY last_ns DESC, $parts.process, scraper
LIMIT {limit:UInt32}
