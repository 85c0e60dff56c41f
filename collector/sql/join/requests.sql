-- The requests of one segment. A request whose parent is a request of the same engine is part of it. That is known only when the parent
-- has come, so such requests are here too: all looks at a segment find the same requests at the same places.
SELECT
    hex(trace_id), hex(span_id), text['process_tenant'], if(link = toFixedString('', 16), '', hex(link)), is_log,
    (splitByChar('.', toString(claim))[1], trace_id, text['process_tenant'], parent_span_id) IN
        (SELECT splitByChar('.', toString(claim))[1], trace_id, text['process_tenant'], substring(span_id, 1) FROM held_requests WHERE arrived >= toDateTime({first_s:UInt32} - 3600, 'UTC'))
FROM held_requests
WHERE arrived BETWEEN toDateTime({first_s:UInt32}, 'UTC') AND toDateTime({last_s:UInt32}, 'UTC') AND segment = {segment:String}
ORDER BY trace_id, span_id, text['process_tenant']
LIMIT 1 BY trace_id, span_id, text['process_tenant']
