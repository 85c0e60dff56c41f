-- An announcement of a request that began before the window's end and was not lost before its start. Where its
-- sender's clock is more than a minute ahead, `heard` is a minute after it was stored, and it had begun by then.
NOT ended AND if(seen > heard, heard - INTERVAL 1 MINUTE, start) <= fromUnixTimestamp64Nano({end_ns:Int64})
    AND heard >= fromUnixTimestamp64Nano({start_ns:Int64} - {lost_after_ns:Int64})
