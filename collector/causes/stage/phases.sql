-- The phases of these requests, as an array of numbers. `name` is a place in `names_of_phases`, 0 for none of them.
SELECT
    cityHash64(trace_id, request_span_id) + $parts.tenant_hash AS key, toUnixTimestamp64Nano(start) AS start_ns, toInt64(duration_ns),
    toUInt8(indexOf({names_of_phases:Array(String)}, name)), ifNull(toFloat64(tokens), nan)
FROM phases
WHERE minute >= toDateTime(intDiv(arrayMin({lows_ns:Array(Int64)}), 1000000000) - 120, 'UTC')
  AND minute <= toDateTime(intDiv(arrayMax({highs_ns:Array(Int64)}), 1000000000), 'UTC') + $parts.end_margin
  AND (trace_id, request_span_id, process_tenant) IN (SELECT trace_id, span_id, process_tenant FROM requests WHERE $parts.beside_requests)
LIMIT {limit:UInt64}
