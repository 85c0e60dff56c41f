-- Every request of a trace that has ended, newest first.
SELECT
    $parts.request_columns
FROM requests
WHERE trace_id = unhex({trace_id:String})
ORDER BY end DESC, span_id
LIMIT 1000
