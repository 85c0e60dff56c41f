-- Requests that WAL segments brought, and the sums of their tokens, by label set. A sum of unknown counts alone is NULL. A sampled
-- request adds its weight.
SELECT
    model, operation, engine, service, variant, tenant, slo_class, vantage, status,
    sum(weight) AS n,
    sum(weight * input_tokens) AS tokens_in,
    sum(weight * output_tokens) AS tokens_out,
    sum(weight * cached_tokens) AS tokens_cached
FROM requests
WHERE $parts.in_segments
GROUP BY ALL
