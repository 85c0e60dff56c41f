-- Whose prompts made others wait in some stretches of time, by process, tenant and model.
-- no rows without: causes
SELECT
    cityHash64(engine, service, instance, process_tenant) AS process, toString(tenant) AS of_tenant, toString(model) AS of_model,
    sum(weight * inflicted_us) AS us
FROM causes FINAL
WHERE inflicted_us > 0 AND $filter AND $ran
GROUP BY process, of_tenant, of_model
ORDER BY us DESC, process, of_tenant, of_model
LIMIT {limit:UInt32}
