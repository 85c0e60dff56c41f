-- The rows that WAL segments brought. The time keeps the query from reading older rows.
segment IN {segments:Array(String)} AND ingested_at >= fromUnixTimestamp64Nano({since_ns:Int64})
