-- The lengths of the prompts of requests that were announced and began in the window.
-- no rows without: open_requests
SELECT lower(hex(trace_id)) || lower(hex(span_id)) AS ids, max(input_tokens) AS tokens
FROM open_requests
WHERE start >= fromUnixTimestamp64Nano({start_ns:Int64}) AND start <= fromUnixTimestamp64Nano({end_ns:Int64}) AND NOT ended AND input_tokens IS NOT NULL
    AND $filter
GROUP BY ids
