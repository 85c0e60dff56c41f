-- Quantiles of what requests met when they came; and the times of the middle request in causes, before the first token and per later one.
SELECT
    quantilesExactInclusive(0.25, 0.5, 0.75, 0.9, 0.99)(batch_at_arrival) AS of_batch_at_arrival,
    quantilesExactInclusive(0.25, 0.5, 0.75, 0.9, 0.99)(kv_usage_at_arrival) AS of_kv_usage_at_arrival,
    quantilesExactInclusive(0.25, 0.5, 0.75, 0.9, 0.99)(idle_time) AS of_idle_time,
    quantileExactInclusiveForEachIf(0.5)(cause_first, is_explained) AS first,
    quantileExactInclusiveForEachIf(0.5)(arrayMap(us -> us / greatest(cause_tokens, 1), cause_rest), is_explained AND cause_tokens > 0) AS rest
FROM $rows
WHERE $parts.ended_in_window AND $filter
