-- Counts of requests by the bucket in which they ended.
SELECT
    $parts.bucket AS bucket_ns,
    count() AS requests,
    countIf(status = 'error') AS failed,
    countIf(status = 'cancelled') AS cancelled,
    sum(output_tokens) AS tokens_out,
    countIf($good) AS goodput,
    countIf($parts.is_undetermined) AS undetermined
FROM requests
WHERE $parts.ended_in_window AND $filter
GROUP BY bucket_ns
ORDER BY bucket_ns
