-- Requests by which of some conditions they meet, a bit for each, and by block of time; and Σ weight².
SELECT
    $bits AS bits, $block AS block, sumIf(weight, $selected) AS selected, sumIf(weight, NOT $selected) AS others,
    sumIf(weight * weight, $selected) AS selected_squares, sumIf(weight * weight, NOT $selected) AS others_squares
FROM $rows
WHERE $parts.ended_in_window AND $filter
GROUP BY bits, block
