-- A request that waited for a cold start and overlaps the time between the two moments.
cold_start_ns > 0 AND start < fromUnixTimestamp64Nano({cause_end_ns:Int64}) AND end > fromUnixTimestamp64Nano({cause_start_ns:Int64})
