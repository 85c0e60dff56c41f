-- A KV event that started in the window, or before it and not before `since_ns`.
start >= fromUnixTimestamp64Nano({since_ns:Int64}) AND start < fromUnixTimestamp64Nano({end_ns:Int64})
