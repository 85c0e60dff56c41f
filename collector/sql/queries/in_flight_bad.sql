SELECT
    lower(hex(concat(trace_id, span_id))) AS key, service, instance, is_lost, lost_at_ns, $bad_for AS by_slo
FROM ($in_flight)
WHERE is_lost OR has(by_slo, 1)
