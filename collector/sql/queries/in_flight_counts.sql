-- Requests that have not ended: in flight, in flight and past a threshold already, lost.
SELECT
    countIf(NOT is_lost) AS in_flight,
    countIf(NOT is_lost AND $bad_already) AS in_flight_violations,
    countIf(is_lost) AS lost
FROM ($parts.in_flight)
