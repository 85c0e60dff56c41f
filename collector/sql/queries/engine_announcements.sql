-- The announcements of each engine process by its labels, and the ends that took their place. It gave a sign of life in the window if `listed`.
SELECT
    service, instance, engine, vantage, variant, model,
    toUnixTimestamp64Nano(min(start)) AS first_ns, toUnixTimestamp64Nano(max(seen)) AS last_ns, count() AS in_flight,
    NOT ended AND seen < fromUnixTimestamp64Nano({end_ns:Int64}) AS listed
FROM open_requests
WHERE $parts.ran_in_window AND $filter
GROUP BY service, instance, engine, vantage, variant, model, listed
