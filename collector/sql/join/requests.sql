-- The requests of one segment, without those whose parent is a request of the same engine: they are its parts.
SELECT hex(trace_id), hex(span_id), if(link = toFixedString('', 16), '', hex(link)), is_log
FROM held_requests
WHERE arrived BETWEEN toDateTime({first_s:UInt32}, 'UTC') AND toDateTime({last_s:UInt32}, 'UTC') AND segment = {segment:String}
  AND (splitByChar('.', toString(claim))[1], trace_id, parent_span_id) NOT IN
      (SELECT splitByChar('.', toString(claim))[1], trace_id, substring(span_id, 1) FROM held_requests WHERE arrived >= toDateTime({first_s:UInt32} - 3600, 'UTC'))
ORDER BY trace_id, span_id
LIMIT 1 BY trace_id, span_id
