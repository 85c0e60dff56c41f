-- The number of a request in `causes`. Processes of two tenants may tell the same ids.
toUInt32(cityHash64(trace_id, span_id) + if(process_tenant = '', 0, cityHash64(process_tenant)))
