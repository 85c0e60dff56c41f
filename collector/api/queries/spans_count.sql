-- The number of spans that no engine's mapping claims.
SELECT count() AS total FROM spans WHERE $parts.started_in_window AND $filter
