-- What the engine processes of explained requests are slower than by themselves, as the newest row of each says that knows something.
-- no rows without: causes
SELECT
    cityHash64(engine, service, instance, process_tenant) AS process, any(service) AS of_service, any(instance) AS of_instance,
    any(process_tenant) AS of_tenant,
    argMax((toString(slower_than), toString(slower_name), slower_by, slower_low, slower_high), end) AS newest
FROM causes
WHERE $parts.ended_in_window AND $filter AND slower_than != 'none' AND process IN {processes:Array(UInt64)}
GROUP BY process
ORDER BY tupleElement(newest, 3) DESC, process
LIMIT {limit:UInt32}
