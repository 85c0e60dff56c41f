SELECT
    (SELECT count() FROM requests WHERE $window AND $filter AND status != 'cancelled') AS judged,
    countIf(NOT is_lost) AS in_flight,
    countIf(is_lost) AS lost
FROM ($in_flight)
