-- A request that waited for KV blocks for half of the time until its first token, or longer, and that ended between the two moments.
(end, toUInt32($parts.request_key)) IN
(
    SELECT causes.end, request_key
    FROM causes FINAL
    WHERE causes.end >= fromUnixTimestamp64Nano({cause_start_ns:Int64}) AND causes.end < fromUnixTimestamp64Nano({cause_end_ns:Int64}) AND ($held)
)
