-- Requests that ended in the window, by how they ended, and the sums of their tokens.
SELECT
    count() AS total,
    countIf(status = 'ok') AS ok,
    countIf($good) AS good,
    countIf(status = 'error') AS failed,
    countIf(status = 'cancelled') AS cancelled,
    sum(output_tokens) AS tokens_out,
    sum(toUInt64(input_tokens) + output_tokens) AS tokens_all,
    sumIf(output_tokens, $good) AS tokens_good
FROM requests
WHERE $parts.ended_in_window AND $filter
