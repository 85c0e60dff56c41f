-- For which request each preemption of the window took blocks from another one, whose key in `causes` it has.
-- no rows without: kv_events
SELECT
    toUInt32(cityHash64(trace_id, toFixedString(request_span_id, 8)) + $parts.tenant_hash) AS key, toUnixTimestamp64Nano(start) AS at_ns, beneficiary
FROM kv_events
WHERE start >= fromUnixTimestamp64Nano({start_ns:Int64}) - $parts.end_margin AND start < fromUnixTimestamp64Nano({end_ns:Int64})
  AND reason = 'preemption' AND request_span_id != '' AND beneficiary != ''
ORDER BY start DESC, key, beneficiary
LIMIT {limit:UInt32}
