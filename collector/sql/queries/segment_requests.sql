SELECT
    model, engine, service, variant, tenant, slo_class, status,
    count() AS n,
    sum(input_tokens) AS tokens_in,
    sum(output_tokens) AS tokens_out,
    sum(cached_tokens) AS tokens_cached
FROM requests
WHERE $segment
GROUP BY ALL
