-- The rows that WAL segments brought. The time bounds what is read to find them.
segment IN {segments:Array(String)} AND ingested_at >= fromUnixTimestamp64Nano({since_ns:Int64})
