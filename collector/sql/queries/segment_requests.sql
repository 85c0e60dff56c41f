-- Requests that WAL segments brought, and the sums of their tokens, by label set. A sum of unknown counts alone is NULL.
SELECT
    model, engine, service, variant, tenant, slo_class, status,
    count() AS n,
    sum(input_tokens) AS tokens_in,
    sum(output_tokens) AS tokens_out,
    sum(cached_tokens) AS tokens_cached
FROM requests
WHERE $parts.in_segments
GROUP BY ALL
