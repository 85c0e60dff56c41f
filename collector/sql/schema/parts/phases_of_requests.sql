-- Rows of `phases`. The FROM behind it has one row for each phase: trace_id, request_span_id, text, request_start, phase.
SELECT
    toStartOfMinute(request_start + toIntervalNanosecond(phase.offset_ns + phase.duration_ns)) AS minute,
    trace_id,
    request_span_id,
    text['process_tenant'] AS process_tenant,
    request_start + toIntervalNanosecond(phase.offset_ns) AS start,
    phase.name AS name,
    phase.duration_ns AS duration_ns
