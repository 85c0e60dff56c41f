-- The least and the largest latency of a window in µs; 0 without one. A latency of 0 has no logarithm.
SELECT minIf($us, $known) AS least_us, maxIf($us, $known) AS most_us
FROM requests
WHERE $parts.ended_in_window AND $filter
