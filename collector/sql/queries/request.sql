-- Every request of a trace, newest first.
SELECT
    $request_columns
FROM requests
WHERE trace_id = unhex({trace_id:String})
ORDER BY end DESC, span_id
LIMIT 1000
