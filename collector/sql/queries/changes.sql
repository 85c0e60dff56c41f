-- When each service first had each model, variant and process in a slice of time, and how many requests. `dimension`: the bit
-- that is 0 tells which.
SELECT
    service, grouping(of_model, of_variant, of_instance) AS dimension, concat(of_model, of_variant, of_instance) AS value,
    toUnixTimestamp64Nano(min(start)) AS first_ns, count() AS n
FROM
(
    SELECT start, service, toString(model) AS of_model, toString(variant) AS of_variant, toString(instance) AS of_instance
    FROM requests
    WHERE $ended AND $filter
)
GROUP BY GROUPING SETS ((service, of_model), (service, of_variant), (service, of_instance))
ORDER BY first_ns, service, dimension, value
LIMIT 1000 BY service, dimension
