-- The tokens of a day by hour, counted since 1970.
SELECT intDiv(toUnixTimestamp(minute), 3600) AS hour, count() AS n
FROM tokens
WHERE _partition_id = {partition:String}
GROUP BY hour
