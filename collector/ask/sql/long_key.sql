-- A request as a text: its two ids in hex, and the tenant of its process (`InFlight.key`).
concat(lower(hex(trace_id)), lower(hex(span_id)), process_tenant)
