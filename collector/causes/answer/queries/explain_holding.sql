-- How many requests of each tenant ran at engine processes while others waited, and of how many nobody tells how long they were queued.
SELECT cityHash64(tenant) AS number, toString(any(tenant)) AS name, count() AS n, countIf(queue_ns IS NULL) AS not_told
FROM requests
WHERE $ran AND $filter AND vantage = 'server'
GROUP BY number
