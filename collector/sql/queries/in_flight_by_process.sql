SELECT service, instance, countIf(NOT is_lost) AS in_flight, countIf(NOT is_lost AND no_progress) AS stuck
FROM ($in_flight)
GROUP BY service, instance
