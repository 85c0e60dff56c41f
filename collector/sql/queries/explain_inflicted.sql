-- Whose prompts made others wait, by process, tenant and model.
-- no rows without: causes
SELECT
    cityHash64(engine, service, instance, process_tenant) AS process, toString(tenant) AS of_tenant, toString(model) AS of_model,
    sum(weight * inflicted_us) AS us
FROM causes FINAL
WHERE $parts.ended_in_window AND $filter AND inflicted_us > 0
GROUP BY process, of_tenant, of_model
ORDER BY us DESC, process, of_tenant, of_model
LIMIT {limit:UInt32}
