-- Of the requests that WAL segments brought, those that were counted before they ended, each with its cell.
SELECT
    lower(hex(concat(trace_id, span_id))) AS key, weight AS n, $cell AS cell, $tenant_group AS tenant_group
FROM requests
WHERE $parts.in_segments AND (trace_id, span_id) IN
(
    SELECT (toFixedString(unhex(substring(k, 1, 32)), 16), toFixedString(unhex(substring(k, 33)), 8))
    FROM (SELECT arrayJoin({counted:Array(String)}) AS k)
)
