-- The columns that `requests` and `open_requests` share and that requests in flight are judged, filtered and grouped by.
trace_id, span_id, $parts.process, model, operation, tenant, variant, engine, slo_class, labels, vantage, output_tokens, ttft_ns
