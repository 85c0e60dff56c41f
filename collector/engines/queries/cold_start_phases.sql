-- The sub-phases of the given cold starts, in order.
SELECT
    lower(hex(trace_id)) AS trace_id_hex, process_tenant, phase AS name, toUnixTimestamp64Nano(start) AS began_ns, duration_ns
FROM cold_starts
WHERE phase != '' AND has({trace_ids:Array(String)}, lower(hex(trace_id)))
ORDER BY start, duration_ns DESC, phase
