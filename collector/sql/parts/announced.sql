-- An announcement of a request that began before the window's end and was not lost before its start. It began before it was heard, also when
-- its sender's clock is hours ahead.
NOT ended AND least(start, heard) <= fromUnixTimestamp64Nano({end_ns:Int64})
    AND heard >= fromUnixTimestamp64Nano({start_ns:Int64} - {lost_after_ns:Int64})
