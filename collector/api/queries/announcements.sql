-- The latest announcement of each of these requests, which began in the given time.
-- no rows without: open_requests
SELECT
    $parts.long_key AS key, request_id, input_tokens
FROM open_requests
WHERE start >= fromUnixTimestamp64Nano({first_ns:Int64}) AND start <= fromUnixTimestamp64Nano({last_ns:Int64})
  AND trace_id IN $parts.given_traces
ORDER BY ended, seen DESC
LIMIT 1 BY trace_id, span_id, process_tenant
