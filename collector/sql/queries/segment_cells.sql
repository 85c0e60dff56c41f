-- Requests that WAL segments brought, in cells that no SLO can tell apart. A sampled request adds its weight.
SELECT $cell AS cell, $tenant_group AS tenant_group, sum(weight) AS n
FROM requests
WHERE $parts.in_segments
GROUP BY cell, tenant_group
