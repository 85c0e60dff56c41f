-- Requests that ended in the window, in cells that no SLO can tell apart (collector.slo.cells). `n`, `variance` and `sums` are of
-- weights where requests were sampled. `others` are columns that only some callers need.
SELECT
    $by AS band, $cell AS cell, $tenant_group AS tenant_group,
    $n AS n, $variance AS variance, $sums AS sums, $others AS others, countIf(is_sampled) AS sampled
FROM requests
WHERE $ended AND $filter
GROUP BY band, cell, tenant_group
SETTINGS optimize_move_to_prewhere = 0, short_circuit_function_evaluation = 'disable'
