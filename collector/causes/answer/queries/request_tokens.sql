-- The tokens of one request, each once. A token was emitted when its own wait and the waits of all tokens of its choice before it were over.
-- Behind a token that is missing, or one with two waits, nobody knows when.
-- no rows without: tokens
SELECT
    choice,
    token_index,
    duration_us * 1000 AS duration_ns,
    if(row_number() OVER until = token_index + 1, sum(duration_us * 1000) OVER until, NULL) AS offset_ns,
    step
FROM
(
    SELECT DISTINCT choice, token_index, duration_us, step
    FROM tokens
    WHERE trace_id = unhex({trace_id:String}) AND request_span_id = unhex({span_id:String})
      AND tenant_hash = (SELECT $parts.tenant_hash FROM (SELECT {process_tenant:String} AS process_tenant))
      AND minute >= toStartOfMinute(fromUnixTimestamp64Nano({began_ns:Int64}))
      AND minute <= toStartOfMinute(fromUnixTimestamp64Nano({ended_ns:Int64}))
)
WINDOW until AS (PARTITION BY choice ORDER BY token_index, duration_us ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
ORDER BY choice, token_index
