-- How many requests ran at engine processes while others waited, and of how many nobody tells how long they were queued.
SELECT count() AS n, countIf(queue_ns IS NULL) AS not_told FROM requests WHERE $ran AND $filter AND vantage = 'server'
