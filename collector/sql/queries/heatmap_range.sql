-- The least and the largest latency of a window in ns; 0 without one. A latency of 0 has no logarithm.
SELECT ifNull(minIf($ns, $ns > 0), 0) AS least_ns, ifNull(maxIf($ns, $ns > 0), 0) AS most_ns
FROM requests
WHERE $parts.ended_in_window AND $filter
