-- What a segment's requests add for one SLO, without those that were counted while they were in flight.
SELECT
    countIf(status != 'cancelled' AND NOT was_counted) AS judged,
    countIf($good AND NOT was_counted) AS good,
    groupArrayIf(key, was_counted) AS known
FROM
(
    SELECT *, lower(hex(concat(trace_id, span_id))) AS key, key IN {counted:Array(String)} AS was_counted
    FROM requests
    WHERE $segment AND $selected
)
