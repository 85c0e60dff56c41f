SELECT
    countIf(NOT is_lost) AS in_flight,
    countIf(NOT is_lost AND $bad_already) AS in_flight_violations,
    countIf(is_lost) AS lost
FROM ($in_flight)
