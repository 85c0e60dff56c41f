-- The requests of one segment.
SELECT hex(trace_id), hex(span_id), if(link = toFixedString('', 16), '', hex(link)), is_log
FROM held_requests
WHERE arrived BETWEEN toDateTime({first_s:UInt32}, 'UTC') AND toDateTime({last_s:UInt32}, 'UTC') AND segment = {segment:String}
ORDER BY trace_id, span_id
LIMIT 1 BY trace_id, span_id
