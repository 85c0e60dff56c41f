-- One number for a request.
cityHash64(trace_id, span_id)
