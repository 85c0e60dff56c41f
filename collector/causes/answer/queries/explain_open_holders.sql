-- The requests at engine processes that were announced and had a first token, by their latest announcements: from that token on each has a place.
-- Some have ended since: ended_announced.sql has their keys.
-- no rows without: open_requests
SELECT
    cityHash64(engine, service, instance, process_tenant) AS process, toUInt32($parts.request_key) AS request_key, cityHash64(tenant) AS tenant_number, toString(tenant) AS tenant_name,
    toUnixTimestamp64Nano(start) AS start_ns, toUnixTimestamp64Nano(start) + toInt64(assumeNotNull(ttft_ns)) AS begin_ns,
    toUnixTimestamp64Nano(seen) AS seen_ns, toUnixTimestamp64Nano(heard) AS heard_ns,
    toFloat64(ifNull(input_tokens, 0)) + ifNull(output_tokens, 0) AS tokens, $parts.request_key AS key
FROM
(
    SELECT *
    FROM open_requests
    PREWHERE $parts.announced
    ORDER BY seen DESC
    LIMIT 1 BY trace_id, span_id, process_tenant
)
WHERE $filter AND vantage = 'server' AND ttft_ns IS NOT NULL
