SELECT
    $bucket AS bucket_ns,
    count() AS requests,
    countIf(status = 'error') AS failed,
    countIf(status = 'cancelled') AS cancelled,
    sum(output_tokens) AS tokens_out,
    countIf($good) AS goodput,
    countIf(status != 'cancelled') AS judged
FROM requests
WHERE $window AND $filter
GROUP BY bucket_ns
ORDER BY bucket_ns
