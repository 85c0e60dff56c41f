-- Requests of the window for the denominator of attainment; those in flight and bad depend on the thresholds.
SELECT
    (SELECT (count(), countIf(status = 'cancelled')) FROM requests WHERE $parts.ended_in_window AND $filter) AS ended,
    ended.1 AS total,
    ended.2 AS cancelled,
    countIf(NOT is_lost) AS in_flight,
    countIf(is_lost) AS lost
FROM ($parts.in_flight)
