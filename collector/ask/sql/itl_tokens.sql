-- The tokens after the first of requests that ended ok in the window. `request_key` is a hash of a request's two ids. A request's tokens lie
-- between its start and its end, and the first of the window's requests began at `first_ns`: a number, since a subquery takes 4 ms more.
FROM tokens
WHERE minute >= toStartOfMinute(fromUnixTimestamp64Nano({first_ns:Int64}))
  AND minute <= toStartOfMinute(fromUnixTimestamp64Nano({end_ns:Int64} - 1)) AND request_key IN
(
    SELECT $parts.request_key FROM requests WHERE $parts.ended_in_window AND $filter AND status = 'ok'
)
