-- The rows that WAL segments brought. The time keeps the query from reading older rows: `since_ns` is of the collector's clock, which may be
-- days ahead of the clock of a ClickHouse server.
segment IN {segments:Array(String)} AND ingested_at >= least(fromUnixTimestamp64Nano({since_ns:Int64}), now64(9) - INTERVAL 1 DAY)
