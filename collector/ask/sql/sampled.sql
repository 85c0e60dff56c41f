-- Samples of the window, and of some time before it.
time >= fromUnixTimestamp64Nano({start_ns:Int64} - {before_ns:Int64}) AND time < fromUnixTimestamp64Nano({end_ns:Int64})
AND $service_filter
