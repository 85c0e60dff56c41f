-- The keys of requests that have ended and are no older than the oldest announced one, which began at `first_ns`.
SELECT $parts.request_key AS key
FROM open_requests
PREWHERE ended AND start >= fromUnixTimestamp64Nano({first_ns:Int64}) - $parts.end_margin
