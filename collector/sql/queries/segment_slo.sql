-- Requests that WAL segments add to the counters of one SLO, without those that were counted while they were in flight. A sampled
-- request adds its weight.
SELECT
    sumIf(weight, status != 'cancelled' AND NOT is_undetermined AND NOT was_counted) AS judged,
    sumIf(weight, $good AND NOT was_counted) AS good,
    sumIf(weight, is_undetermined AND NOT was_counted) AS undetermined,
    groupArrayIf(key, was_counted) AS ended
FROM
(
    SELECT
        *, ttft_us, tpot_us, e2e_us, $undetermined AS is_undetermined,
        lower(hex(concat(trace_id, span_id))) AS key, key IN {counted:Array(String)} AS was_counted
    FROM requests
    WHERE $parts.in_segments AND $selected
)
