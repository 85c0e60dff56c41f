-- Sums over sessions by which one sees whether their requests go together: of those selected, of all, and of their products.
SELECT sum(s) AS selected, sum(n) AS requests, sum(s * s) AS selected_squares, sum(n * n) AS squares, sum(s * n) AS products
FROM
(
    SELECT toFloat64(countIf($selected)) AS s, toFloat64(count()) AS n
    FROM $rows
    WHERE $parts.ended_in_window AND $filter
    GROUP BY $session AS session, if(session = '', $parts.request_key, 0)
)
