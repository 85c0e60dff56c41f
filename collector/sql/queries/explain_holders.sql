-- Whose requests ran at each process, by tenant: the time without their queue, and that times their tokens, as they hold KV blocks.
WITH toFloat64(e2e_us) - if(queue_us = 4294967295, 0, least(queue_us, e2e_us)) AS ran_us
SELECT
    cityHash64(engine, service, instance, process_tenant) AS process, toString(tenant) AS of_tenant, sum(weight * ran_us) AS place_us,
    sum(weight * ran_us * (toFloat64(ifNull(input_tokens, 0)) + ifNull(output_tokens, 0))) AS kv_us
FROM requests
WHERE $parts.ended_in_window AND $filter AND vantage = 'server'
GROUP BY process, of_tenant
ORDER BY place_us DESC, process, of_tenant
LIMIT {limit:UInt32}
