-- A request that ended about when one of the window did, which may be the same one seen by another.
end >= fromUnixTimestamp64Nano({start_ns:Int64}) - $parts.end_margin AND end < fromUnixTimestamp64Nano({end_ns:Int64}) + $parts.end_margin
