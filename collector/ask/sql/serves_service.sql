-- A service that has a matching request, ended or in flight, in the window, as in serves_requests.sql.
(process_tenant, service) IN
(
    SELECT arrayJoin([process_tenant, '']), service FROM
    (
        SELECT DISTINCT process_tenant, service FROM requests WHERE $parts.ended_in_window AND $filter
        UNION DISTINCT
        SELECT process_tenant, service FROM open_requests
        WHERE $parts.ran_in_window AND $filter
    )
)
