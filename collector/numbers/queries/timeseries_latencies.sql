-- Percentiles of latencies of requests that ended ok, by bucket. collector.numbers.timeseries writes the columns of each latency.
SELECT $parts.bucket AS bucket_ns, $latencies AS latencies
FROM requests
WHERE $parts.ended_in_window AND $filter AND status = 'ok'
GROUP BY bucket_ns
ORDER BY bucket_ns
