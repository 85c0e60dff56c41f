-- The rows of a day by hour, counted since 1970: a request by its end, a token by its minute.
SELECT intDiv(toUnixTimestamp($time), 3600) AS hour, count() AS n
FROM $table
WHERE _partition_id = {partition:String}
GROUP BY hour
