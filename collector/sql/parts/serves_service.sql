-- A service that has a matching request, ended or in flight, in the window.
service IN
(
    SELECT service FROM requests WHERE $parts.ended_in_window AND $filter
    UNION DISTINCT
    SELECT service FROM open_requests
    WHERE $parts.ran_in_window AND $filter
)
