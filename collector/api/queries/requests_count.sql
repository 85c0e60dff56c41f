-- How many rows all pages of requests.sql have together.
SELECT count() AS total FROM requests WHERE $parts.ended_in_window AND $filter
