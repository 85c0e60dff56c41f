-- Ended requests by the threshold that they missed. A request may have missed several.
SELECT
    countIf($ttft) AS ttft,
    countIf($tpot) AS tpot,
    countIf($e2e) AS e2e,
    countIf(status = 'error') AS failed
FROM requests
WHERE $parts.ended_in_window AND $filter AND status != 'cancelled'
