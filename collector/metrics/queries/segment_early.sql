-- Of the requests that WAL segments brought, those that were counted before they ended, each with its cell.
SELECT
    $parts.long_key AS key, weight AS n, $cell AS cell, $tenant_group AS tenant_group
FROM requests
WHERE $parts.in_segments AND (trace_id, span_id, process_tenant) IN
(
    SELECT (toFixedString(unhex(substring(k, 1, 32)), 16), toFixedString(unhex(substring(k, 33, 16)), 8), substring(k, 49))
    FROM (SELECT arrayJoin({counted:Array(String)}) AS k)
)
