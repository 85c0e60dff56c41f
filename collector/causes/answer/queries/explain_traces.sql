-- Which of these traces have a request that ended about when the window did.
SELECT lower(hex(trace_id)) AS trace_id_hex, lower(hex(any(span_id))) AS span_id_hex
FROM requests
WHERE $parts.near_window AND trace_id IN $parts.given_traces AND $filter
GROUP BY trace_id
