-- Without the rows of clients and gateways whose server reported the same request, in a row that the filter keeps: both have one
-- response id, or the server's span is the child of the client's. A request of which it keeps the client's row alone counts by that.
(vantage = 'server' OR (trace_id, span_id) NOT IN
(
    SELECT trace_id, span_id
    FROM requests
    WHERE $parts.near_window AND vantage != 'server' AND
    (
        request_id != '' AND request_id IN (SELECT request_id FROM requests WHERE $parts.near_window AND vantage = 'server' AND $filter)
        OR (trace_id, span_id) IN
            (SELECT trace_id, toFixedString(parent_span_id, 8) FROM requests WHERE $parts.near_window AND vantage = 'server' AND parent_span_id != '' AND $filter)
    )
))
