-- Requests that are lost, or in flight and bad for at least one SLO, with one flag per SLO.
SELECT
    lower(hex(concat(trace_id, span_id))) AS key, service, instance, is_lost, lost_at_ns, $bad_by_slo AS by_slo
FROM ($parts.in_flight)
WHERE is_lost OR has(by_slo, 1)
