-- The phases of one request, in order.
-- no rows without: phases
SELECT name, toUnixTimestamp64Nano(start) - {began_ns:Int64} AS offset_ns, duration_ns
FROM phases
WHERE trace_id = unhex({trace_id:String}) AND request_span_id = unhex({span_id:String}) AND process_tenant = {process_tenant:String}
  AND minute >= toStartOfMinute(fromUnixTimestamp64Nano({began_ns:Int64}))
  AND minute <= toStartOfMinute(fromUnixTimestamp64Nano({ended_ns:Int64}))
ORDER BY start, duration_ns, name
