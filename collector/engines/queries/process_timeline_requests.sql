-- The requests of one engine process that overlap a time and have ended within an hour of it, the newest first.
-- no rows without: requests
SELECT
    lower(hex(trace_id)) AS trace_id, lower(hex(span_id)) AS span_id, toUnixTimestamp64Nano(requests.start) AS start_ns, e2e_ns, ttft_ns, status, tenant,
    input_tokens, output_tokens, count() OVER () AS requests_total
FROM requests
WHERE (service, instance, process_tenant) = ({service:String}, {instance:String}, {process_tenant:String}) AND vantage = 'server'
  AND end >= fromUnixTimestamp64Nano({start_ns:Int64}) AND end < fromUnixTimestamp64Nano({end_ns:Int64}) + INTERVAL 1 HOUR
  AND requests.start < fromUnixTimestamp64Nano({end_ns:Int64})
ORDER BY requests.start DESC, trace_id, span_id
LIMIT {limit:UInt32}
