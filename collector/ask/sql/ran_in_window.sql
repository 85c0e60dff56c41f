-- A request that was announced, or ended, after the window began, and that began before the window ended.
seen >= fromUnixTimestamp64Nano({start_ns:Int64}) AND (NOT ended OR seen >= fromUnixTimestamp64Nano({start_ns:Int64}) + $parts.end_margin)
    AND start < fromUnixTimestamp64Nano({end_ns:Int64})
