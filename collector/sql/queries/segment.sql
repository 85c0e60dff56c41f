segment IN {segments:Array(String)} AND ingested_at >= fromUnixTimestamp64Nano({since_ns:Int64})
