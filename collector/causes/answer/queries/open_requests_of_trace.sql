-- The latest announcement of each request of a trace that has not ended, newest request first.
-- no rows without: open_requests
SELECT
    lower(hex(trace_id)) AS trace_id_hex, lower(hex(span_id)) AS span_id_hex, request_id, engine, service, instance, process_tenant,
    variant, vantage, operation, model, tenant, slo_class, labels, toUnixTimestamp64Nano(start) AS began_ns,
    toUnixTimestamp64Nano(seen) AS seen_ns, toUnixTimestamp64Nano(heard) AS heard_ns, input_tokens, output_tokens, ttft_ns, last_token_ns, gap_ns, false AS unmeasured
FROM
(
    SELECT *
    FROM open_requests
    WHERE trace_id = unhex({trace_id:String})
    ORDER BY ended DESC, seen DESC
    LIMIT 1 BY span_id, process_tenant
)
WHERE NOT ended AND $begun
ORDER BY start DESC, span_id
LIMIT 1000
