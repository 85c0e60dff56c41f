-- Ten minutes of engine processes that have steps and no model, the oldest first.
SELECT
    $parts.process_key AS process, service, instance, process_tenant, argMax(variant, start) AS variant,
    toUnixTimestamp(toStartOfTenMinutes(steps.start)) AS at_s
FROM steps
WHERE steps.start >= toDateTime({since_s:Int64}, 'UTC') AND steps.start < toDateTime({until_s:Int64}, 'UTC')
GROUP BY process, service, instance, process_tenant, at_s
HAVING (process, at_s) NOT IN
    (SELECT $parts.process_key, toUnixTimestamp(at) FROM step_models WHERE at >= toDateTime({since_s:Int64}, 'UTC') AND version >= {version:UInt32})
ORDER BY at_s, process
LIMIT {limit:UInt32}
