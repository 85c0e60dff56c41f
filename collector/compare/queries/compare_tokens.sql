-- What a comparison reads of the tokens after the first of requests that compare_rows.sql reads, of one token in `each`: the
-- request and nanoseconds. A number of 53 bits stands for the request's key in both. The bounds are those of parts/itl_tokens.sql, but
-- the tokens are chosen before their requests are looked up.
SELECT toFloat64(bitShiftRight(request_key, 11)), toFloat64(duration_us) * 1000
FROM tokens
PREWHERE request_key % {of:UInt32} = 0 AND (request_key + token_index) % {each:UInt32} = 0
WHERE minute >= toStartOfMinute(fromUnixTimestamp64Nano({first_ns:Int64}))
  AND minute <= toStartOfMinute(fromUnixTimestamp64Nano({end_ns:Int64} - 1)) AND request_key IN
(
    SELECT $parts.request_key FROM requests WHERE $parts.ended_in_window AND $filter AND status = 'ok' AND $parts.request_key % {of:UInt32} = 0
)
