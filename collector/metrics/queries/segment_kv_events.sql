-- Evictions and preemptions that WAL segments brought, per engine process and reason.
SELECT
    $parts.process, reason,
    count() AS n,
    ifNull(sumIf(blocks, kind = 'evict'), 0) AS evicted,
    toUnixTimestamp64Nano(max(start)) AS last_ns
FROM kv_events
WHERE segment IN {segments:Array(String)} AND start >= least(fromUnixTimestamp64Nano({since_ns:Int64}), now64(9) - INTERVAL 1 DAY)
  AND (kind = 'evict' OR reason = 'preemption')
GROUP BY $parts.process, reason
