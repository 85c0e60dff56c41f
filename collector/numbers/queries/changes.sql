-- The requests of each service by model and by variant, in blocks of ten minutes, and by process, of a slice of time: when the first
-- and the last of each value began. `dimension`: the bit that is 0 tells which.
SELECT
    service, grouping(of_model, of_variant, of_instance) AS dimension, concat(of_model, of_variant, of_instance) AS value, block,
    toUnixTimestamp64Nano(min(start)) AS first_ns, toUnixTimestamp64Nano(max(start)) AS last_ns, count() AS n
FROM
(
    SELECT
        start, service, toString(model) AS of_model, toString(variant) AS of_variant, toString(instance) AS of_instance,
        intDiv(toUnixTimestamp64Nano(start), 600000000000) AS block
    FROM requests
    WHERE $ended AND $filter
)
GROUP BY GROUPING SETS ((service, of_model, block), (service, of_variant, block), (service, of_instance))
ORDER BY first_ns, service, dimension, value
LIMIT 100000
