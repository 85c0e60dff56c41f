-- A request belongs to the window in which it ended.
end >= fromUnixTimestamp64Nano({start_ns:Int64}) AND end < fromUnixTimestamp64Nano({end_ns:Int64})
