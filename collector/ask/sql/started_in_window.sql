-- A step, a KV event or a cold start belongs to the window in which it started.
start >= fromUnixTimestamp64Nano({start_ns:Int64}) AND start < fromUnixTimestamp64Nano({end_ns:Int64})
