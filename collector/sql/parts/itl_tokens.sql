-- The tokens after the first of requests that ended ok in the window.
FROM tokens
WHERE $parts.token_minutes AND (trace_id, request_span_id) IN 
(
    SELECT trace_id, span_id FROM requests WHERE $parts.ended_in_window AND $filter AND status = 'ok'
)
