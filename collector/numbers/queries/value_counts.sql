-- For each value of each column: the requests that are selected and the others, by weight. `dimension` tells by its bit
-- that is 0 which column, the first one highest. A column with very many values has those with the most
-- selected requests.
WITH tuple$columns AS columns, $selected AS is_selected
SELECT
    grouping$names AS dimension, concat$names AS value,
    sumIf(weight, is_selected) AS selected, sumIf(weight, NOT is_selected) AS others
FROM $rows
WHERE $parts.ended_in_window AND $filter
GROUP BY GROUPING SETS $sets
ORDER BY selected DESC, others DESC, value
LIMIT {most:UInt32} BY dimension
