-- The tokens of one request. A token was emitted when its own wait and the waits of all tokens of its choice before it were over.
SELECT
    choice,
    token_index,
    duration_us * 1000 AS duration_ns,
    sum(duration_us * 1000) OVER (PARTITION BY choice ORDER BY token_index ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS offset_ns,
    step
FROM tokens
WHERE trace_id = unhex({trace_id:String}) AND request_span_id = unhex({span_id:String})
  AND minute >= toStartOfMinute(fromUnixTimestamp64Nano({began_ns:Int64}))
  AND minute <= toStartOfMinute(fromUnixTimestamp64Nano({ended_ns:Int64}))
ORDER BY choice, token_index
