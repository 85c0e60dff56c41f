-- How long requests waited for KV blocks until their first token, by engine process and bucket of time before the window's end: of all time until
-- then, and how many requests waited for them for half of it or longer. Only processes with `least` of these.
-- no rows without: causes
SELECT
    $parts.process, greatest(intDiv({end_ns:Int64} - 1 - toUnixTimestamp64Nano(end), {bucket_ns:Int64}), 0) AS bucket,
    sum(weight * ($waited)) AS waited_us, sum(weight * ttft_wait_kv_us) AS waited_kv_us, sumIf(weight, $held) AS held, countIf($held) AS n
FROM causes FINAL
WHERE $parts.ended_in_window AND $filter AND vantage = 'server'
GROUP BY $parts.process, bucket
QUALIFY sum(held) OVER (PARTITION BY $parts.process) >= {least:UInt32}
ORDER BY max(bucket) OVER (PARTITION BY $parts.process), $parts.process
