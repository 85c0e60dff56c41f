-- An announcement of a request that began before the window's end and was not lost before its start.
NOT ended AND start <= fromUnixTimestamp64Nano({end_ns:Int64})
    AND heard >= fromUnixTimestamp64Nano({start_ns:Int64} - {lost_after_ns:Int64})
