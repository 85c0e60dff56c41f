-- Engine processes that went silent, or make no progress, while requests wait for them.
SELECT
    service, instance, is_lost,
    count() AS victims,
    toUnixTimestamp64Nano(if(is_lost, max(seen), min(greatest(start, fromUnixTimestamp64Nano(last_step_ns))))) AS since_ns,
    max(lost_at_ns) AS given_up_ns
FROM ($parts.in_flight)
WHERE is_lost OR no_progress
GROUP BY service, instance, is_lost
ORDER BY given_up_ns DESC
LIMIT {limit:UInt32}
