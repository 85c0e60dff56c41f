-- The engine processes of the requests that are explained, with how far.
-- no rows without: causes
SELECT
    cityHash64(engine, service, instance, process_tenant) AS process, any(engine) AS of_engine, any(service) AS of_service,
    any(instance) AS of_instance, any(process_tenant) AS of_tenant, count() AS n, max(end) AS last
FROM causes
WHERE $parts.ended_in_window AND $filter
GROUP BY process
ORDER BY n DESC
LIMIT {limit:UInt32}
