-- As violations.sql, for requests that have not ended. A lost request has failed.
SELECT
    countIf(NOT is_lost AND $ttft) AS ttft,
    countIf(NOT is_lost AND $tpot) AS tpot,
    countIf(NOT is_lost AND $e2e) AS e2e,
    countIf(is_lost) AS failed
FROM ($parts.in_flight)
