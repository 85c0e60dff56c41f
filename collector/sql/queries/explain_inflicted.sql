-- Whose prompts made others wait, by tenant and model.
-- no rows without: causes
SELECT toString(tenant) AS of_tenant, toString(model) AS of_model, sum(weight * inflicted_us) AS us
FROM causes FINAL
WHERE $parts.ended_in_window AND $filter AND inflicted_us > 0
GROUP BY of_tenant, of_model
ORDER BY us DESC, of_tenant, of_model
LIMIT {limit:UInt32}
