-- Of what is odd in a window, the tenant with most: how many of its requests are, of how many, and the median of their prompts; and all.
SELECT of_tenant, n, requests, prompt_tokens, sum(n) OVER () AS odd, sum(requests) OVER () AS total
FROM
(
    SELECT
        toString(tenant) AS of_tenant, countIf($odd) AS n, count() AS requests,
        quantileIf(0.5)(input_tokens, $odd AND input_tokens IS NOT NULL) AS prompt_tokens
    FROM requests
    WHERE $parts.ended_in_window AND $filter
    GROUP BY of_tenant
)
ORDER BY n DESC, of_tenant
LIMIT 1
