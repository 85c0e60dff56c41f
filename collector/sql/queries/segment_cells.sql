-- Requests that WAL segments brought, in cells that no SLO can tell apart. A sampled request adds its weight.
SELECT
    $selected AS selected, $excluded AS excluded, $outcome AS outcome, $ttft AS ttft, $tpot AS tpot, $e2e AS e2e, $tenant_group AS tenant_group,
    sum(weight) AS n
FROM requests
WHERE $parts.in_segments
GROUP BY selected, excluded, outcome, ttft, tpot, e2e, tenant_group
