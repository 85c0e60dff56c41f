-- A request belongs to the window in which it ended. The check of spans refuses those that end more than a day ahead.
end >= fromUnixTimestamp64Nano({start_ns:Int64}) AND end < fromUnixTimestamp64Nano({end_ns:Int64}) + INTERVAL 1 DAY
    AND $parts.counts_at >= fromUnixTimestamp64Nano({start_ns:Int64}) AND $parts.counts_at < fromUnixTimestamp64Nano({end_ns:Int64})
