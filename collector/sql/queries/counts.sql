-- Requests that ended in the window, by how they ended, and the sums of their tokens. A request of unknown tokens is in no sum;
-- `known_out` and `known_all` are the numbers of the others. A sum is NULL when it has none.
SELECT
    count() AS total,
    countIf(status = 'ok') AS ok,
    countIf($good) AS good,
    countIf($parts.is_undetermined) AS undetermined,
    countIf(status = 'error') AS failed,
    countIf(status = 'cancelled') AS cancelled,
    sum(output_tokens) AS tokens_out,
    sum(toUInt64(input_tokens) + output_tokens) AS tokens_all,
    count(output_tokens) AS known_out,
    count(input_tokens + output_tokens) AS known_all,
    sumIf(output_tokens, $good) AS tokens_good
FROM requests
WHERE $parts.ended_in_window AND $filter
