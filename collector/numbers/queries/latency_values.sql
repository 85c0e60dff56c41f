-- One latency of requests that ended ok, of those in some of the buckets of latency_buckets.sql.
SELECT toFloat64(assumeNotNull($ns)) AS ns
FROM requests
PREWHERE $within
WHERE $ended AND $filter AND status = 'ok' AND $ns IS NOT NULL
