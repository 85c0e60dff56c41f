-- A service that has a matching request, ended or in flight, in the window.
service IN
(
    SELECT service FROM requests WHERE $parts.ended_in_window AND $filter
    UNION DISTINCT
    SELECT service FROM open_requests
    WHERE seen >= fromUnixTimestamp64Nano({start_ns:Int64}) AND start < fromUnixTimestamp64Nano({end_ns:Int64}) AND $filter
)
