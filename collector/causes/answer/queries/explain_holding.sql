-- How many requests ran at engine processes while others waited.
SELECT count() AS n FROM requests WHERE $ran AND $filter AND vantage = 'server'
