-- Requests that had not ended at `end_ns`. A request is lost when it was not announced again for `lost_after_ns`; those lost
-- before `start_ns` are left out. A request is described by its latest announcement, so `elapsed_ns` ends there; a request that
-- ended after `end_ns` is described by its row. `no_progress`: its engine process ran no step for `lost_after_ns`. Steps older
-- than a day are not looked for.
WITH
    fromUnixTimestamp64Nano({end_ns:Int64}, 'UTC') AS at,
    fromUnixTimestamp64Nano({start_ns:Int64} - {lost_after_ns:Int64}, 'UTC') AS heard_since
SELECT
    $parts.in_flight_columns, seen,
    toUInt64(greatest(toUnixTimestamp64Nano(least(seen, at)) - toUnixTimestamp64Nano(start), 0)) AS elapsed_ns,
    toUnixTimestamp64Nano(seen) + {lost_after_ns:Int64} AS lost_at_ns,
    lost_at_ns < {end_ns:Int64} AS is_lost,
    stepped.last_step > 0 AND toUnixTimestamp64Nano(least(seen, at))
        - toUnixTimestamp64Nano(greatest(stepped.last_step, start)) > {lost_after_ns:Int64} AS no_progress,
    toUnixTimestamp64Nano(stepped.last_step) AS last_step_ns
FROM
(
    SELECT $parts.in_flight_columns, seen
    FROM
    (
        SELECT *
        FROM open_requests
        WHERE seen >= heard_since AND start <= at
        ORDER BY ended DESC, seen DESC
        LIMIT 1 BY trace_id, span_id
    )
    WHERE NOT ended AND $filter
    UNION ALL
    SELECT $parts.in_flight_columns, end
    FROM requests
    WHERE start <= at AND end > at AND end < at + $parts.end_margin AND $filter
) AS open
LEFT JOIN
(
    SELECT service, instance, max(start) AS last_step
    FROM steps
    WHERE start <= at AND start > at - INTERVAL 1 DAY
    GROUP BY service, instance
) AS stepped USING (service, instance)
