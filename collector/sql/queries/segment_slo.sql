-- Requests that WAL segments add to the counters of one SLO, without those that were counted while they were in flight.
SELECT
    countIf($parts.is_judged AND NOT was_counted) AS judged,
    countIf($good AND NOT was_counted) AS good,
    countIf($parts.is_undetermined AND NOT was_counted) AS undetermined,
    groupArrayIf(key, was_counted) AS ended
FROM
(
    SELECT *, lower(hex(concat(trace_id, span_id))) AS key, key IN {counted:Array(String)} AS was_counted
    FROM requests
    WHERE $parts.in_segments AND $selected
)
