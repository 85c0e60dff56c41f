-- Requests that ended in the window, in cells that no SLO can tell apart (collector.slo.cells). `n` and `variance` are of weights
-- where requests were sampled.
SELECT
    $by AS band, $selected AS selected, $excluded AS excluded, $outcome AS outcome, $ttft AS ttft, $tpot AS tpot, $e2e AS e2e,
    $tenant_group AS tenant_group, $n AS n, $variance AS variance, countIf(is_sampled) AS sampled
FROM requests
WHERE $ended AND $filter
GROUP BY band, selected, excluded, outcome, ttft, tpot, e2e, tenant_group
SETTINGS optimize_move_to_prewhere = 0
