-- The segments whose requests are not explained, the oldest first, by engine process. The collector's clock may be days ahead of the server's.
WITH least(toDateTime({since_s:UInt32}, 'UTC'), now('UTC') - toIntervalSecond({late_s:UInt32})) AS since
SELECT
    segment, service, instance, $parts.process_key AS process,
    toUnixTimestamp64Nano(max(end)) AS last_end_ns, dateDiff('second', max(end), now64(9, 'UTC')) AS ended_ago_s,
    dateDiff('second', min(end), now64(9, 'UTC')) AS first_ended_ago_s,
    toUnixTimestamp(min(ingested_at)) AS first_s, toUnixTimestamp(max(ingested_at)) AS last_s,
    dateDiff('second', max(ingested_at), now64(3, 'UTC')) AS age_s,
    toUnixTimestamp64Nano(min(start)) AS start_ns, count() AS requests
FROM requests
WHERE ingested_at >= toDateTime64(since, 3, 'UTC') AND segment NOT IN (SELECT segment FROM explained_segments WHERE explained_at >= since)
GROUP BY segment, service, instance, process_tenant
ORDER BY min(first_s) OVER (PARTITION BY segment), segment
LIMIT {limit:UInt32}
