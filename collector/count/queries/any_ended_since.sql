-- 1 when a request has ended at `end_ns` or later. In a window that ends now there is none, unless a clock is ahead.
SELECT toUInt8(1) FROM requests PREWHERE end >= fromUnixTimestamp64Nano({end_ns:Int64}) LIMIT 1
