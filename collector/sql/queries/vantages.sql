-- The vantages of the window's requests.
SELECT DISTINCT vantage FROM requests WHERE $parts.ended_in_window AND $filter
