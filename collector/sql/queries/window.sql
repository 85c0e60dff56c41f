end >= fromUnixTimestamp64Nano({start_ns:Int64}) AND end < fromUnixTimestamp64Nano({end_ns:Int64})
