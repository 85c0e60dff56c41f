-- The tokens after the first of requests that ended ok in the window. `request_key` is a hash of a request's two ids.
FROM tokens
WHERE $parts.token_minutes AND request_key IN
(
    SELECT cityHash64(trace_id, span_id) FROM requests WHERE $parts.ended_in_window AND $filter AND status = 'ok'
)
