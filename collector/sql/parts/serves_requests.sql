-- An engine process that has a matching request, ended or in flight, in the window.
(service, instance) IN
(
    SELECT service, instance FROM requests WHERE $parts.ended_in_window AND $filter
    UNION DISTINCT
    SELECT service, instance FROM open_requests
    WHERE $parts.ran_in_window AND $filter
)
