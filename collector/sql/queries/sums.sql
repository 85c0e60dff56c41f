-- Sums over the requests that ended in the window, by group. collector.measure.sums writes the sums.
SELECT $by AS by, $sums AS sums
FROM requests
WHERE $ended AND $filter
GROUP BY by
SETTINGS optimize_move_to_prewhere = 0, short_circuit_function_evaluation = 'disable'
