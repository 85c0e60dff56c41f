-- The engine processes of the requests that are explained, by their keys of one request in `every`.
-- no rows without: causes
SELECT
    cityHash64(engine, service, instance, process_tenant) AS process, any(engine) AS of_engine, any(service) AS of_service,
    any(instance) AS of_instance, any(process_tenant) AS of_tenant, argMax(variant, end) AS of_variant
FROM causes
WHERE $parts.ended_in_window AND $filter AND request_key % {every:UInt32} = 0
GROUP BY process
ORDER BY count() DESC, process
LIMIT {limit:UInt32}
