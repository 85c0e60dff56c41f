-- The tokens after the first of requests that ended ok in the window. A request's two ids are compared as one hash of 64 bits:
-- it takes half the CPU time, and a quarter of the memory of a window of many requests.
FROM tokens
WHERE $parts.token_minutes AND cityHash64(trace_id, request_span_id) IN
(
    SELECT cityHash64(trace_id, span_id) FROM requests WHERE $parts.ended_in_window AND $filter AND status = 'ok'
)
