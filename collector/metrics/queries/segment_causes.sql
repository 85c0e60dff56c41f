-- Where the time of the requests went that WAL segments brought: microseconds by cause, before the first token and after it, and how many requests
-- each reason to wait held up for half of the time until their first token. A row for those that no SLO tells apart, of a model of a service.
SELECT
    model, service, process_tenant, vantage = 'server' AS is_server, $cell AS cell,
    $before AS before, $after AS after, $held AS held
FROM causes FINAL
WHERE (end, request_key) IN (SELECT end, toUInt32($parts.request_key) FROM requests WHERE $parts.in_segments)
GROUP BY model, service, process_tenant, is_server, cell
