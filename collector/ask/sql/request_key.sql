-- One number for a request. Processes of two tenants may tell the same ids: their requests are two.
(cityHash64(trace_id, span_id) + $parts.tenant_hash)
