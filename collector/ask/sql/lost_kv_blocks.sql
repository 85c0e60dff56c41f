-- A request from which its engine process took KV-cache blocks while it ran, between the two moments.
(trace_id, span_id, $parts.process) IN
(
    SELECT trace_id, toFixedString(request_span_id, 8), $parts.process
    FROM kv_events
    WHERE reason = 'preemption'
      AND start >= fromUnixTimestamp64Nano({cause_start_ns:Int64}) AND start <= fromUnixTimestamp64Nano({cause_end_ns:Int64})
)
