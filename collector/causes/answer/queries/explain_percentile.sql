-- A percentile of a latency in µs, of the requests that ended ok and have it.
SELECT $percentile AS percentile, countIf($known) AS known
FROM requests
WHERE $parts.ended_in_window AND $filter
