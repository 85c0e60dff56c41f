-- One latency of requests that ended ok, by bucket of whole microseconds (collector.numbers.latencies).
SELECT $bucket AS bucket, count() AS n, sum(toFloat64(assumeNotNull($ns))) AS total, max(toFloat64(assumeNotNull($ns))) AS largest
FROM requests
WHERE $ended AND $filter AND status = 'ok' AND $ns IS NOT NULL
GROUP BY bucket
