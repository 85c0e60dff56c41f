-- The vantages of the window's requests.
SELECT DISTINCT vantage FROM requests WHERE $ended AND $filter
