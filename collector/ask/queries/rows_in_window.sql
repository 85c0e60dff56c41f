-- The number of a table's rows in a window.
SELECT count() AS n FROM $table WHERE $in_window AND $filter
