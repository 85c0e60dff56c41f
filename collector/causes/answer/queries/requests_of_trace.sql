-- The requests of a trace that have ended: first that of a span, if it is asked for, then the newest. `judged` has the verdicts, as
-- collector.count.verdicts asks for them. To look for a better plan takes longer than to read the few rows, and so does a second thread.
SELECT
    $parts.request_columns, $judged AS judged, $parts.process_key AS process_key, $parts.request_key AS request_key
FROM requests
WHERE trace_id = unhex({trace_id:String}) AND $within
ORDER BY span_id = unhex({span_id:String}) DESC, end DESC, span_id
LIMIT {limit:UInt32}
SETTINGS query_plan_enable_optimizations = 0, max_threads = 1
