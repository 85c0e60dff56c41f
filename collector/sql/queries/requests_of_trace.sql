-- Every request of a trace that has ended, newest first. `judged` has the verdicts, as collector.api.verdicts asks for them.
SELECT
    $parts.request_columns, $judged AS judged
FROM requests
WHERE trace_id = unhex({trace_id:String})
ORDER BY end DESC, span_id
LIMIT {limit:UInt32}
