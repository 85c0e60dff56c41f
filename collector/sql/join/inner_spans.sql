-- The parts that may have children, with their parents.
SELECT hex(trace_id), hex(span_id), text['process_tenant'], hex(parent_span_id)
FROM held_spans
WHERE trace_id IN (SELECT toFixedString(unhex(arrayJoin({traces:Array(String)})), 16)) AND NOT is_leaf AND parent_span_id != ''
