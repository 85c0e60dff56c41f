-- An engine process that has a matching request, ended or in flight, in the window. One that belongs to all tenants may serve a request
-- that a tenant's own process reported under the same name.
($parts.process) IN
(
    SELECT service, instance, arrayJoin([process_tenant, '']) FROM
    (
        SELECT DISTINCT $parts.process FROM requests WHERE $parts.ended_in_window AND $filter
        UNION DISTINCT
        SELECT $parts.process FROM open_requests
        WHERE $parts.ran_in_window AND $filter
    )
)
