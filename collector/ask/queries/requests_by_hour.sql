-- The rows of a day by the hour in which the request ended, counted since 1970.
SELECT intDiv(toUnixTimestamp64Nano(end), 3600000000000) AS hour, count() AS n
FROM requests
WHERE _partition_id = {partition:String}
GROUP BY hour
