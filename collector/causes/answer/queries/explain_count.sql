-- How many requests of the window have causes; one that is being explained again may count twice.
SELECT count() AS n FROM causes WHERE $parts.ended_in_window AND $filter
