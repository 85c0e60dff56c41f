-- When each service first had each model, variant and process, and how many requests: those that began in the window, and of
-- services that had requests before. `dimension`: the bit that is 0 tells which.
SELECT
    service, grouping(of_model, of_variant, of_instance) AS dimension, concat(of_model, of_variant, of_instance) AS value,
    toUnixTimestamp64Nano(min(start)) AS first_ns, count() AS n
FROM
(
    SELECT start, service, toString(model) AS of_model, toString(variant) AS of_variant, toString(instance) AS of_instance
    FROM requests
    WHERE end >= fromUnixTimestamp64Nano({since_ns:Int64}) AND end < fromUnixTimestamp64Nano({end_ns:Int64}) AND $filter
)
GROUP BY GROUPING SETS ((service, of_model), (service, of_variant), (service, of_instance))
ORDER BY first_ns, service, dimension, value
LIMIT {most:UInt32} BY service, dimension
