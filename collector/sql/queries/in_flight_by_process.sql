-- Requests in flight per engine process, and those of them that wait for a process which makes no progress.
SELECT service, instance, countIf(NOT is_lost) AS in_flight, countIf(NOT is_lost AND no_progress) AS stuck
FROM ($parts.in_flight)
GROUP BY service, instance
