-- Ended requests by what they missed; a request may be in several.
SELECT
    countIf($ttft) AS ttft,
    countIf($tpot) AS tpot,
    countIf($e2e) AS e2e,
    countIf(status = 'error') AS failed
FROM requests
WHERE $window AND $filter AND status != 'cancelled'
