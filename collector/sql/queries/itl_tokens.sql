FROM tokens
WHERE $token_minutes AND (trace_id, request_span_id) IN ($request_keys)
