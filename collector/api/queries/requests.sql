-- One page of request rows. `judged` has the verdicts, as collector.count.verdicts asks for them.
SELECT
    $parts.request_columns, toUInt32($parts.request_key) AS key, $judged AS judged
FROM requests
WHERE $parts.ended_in_window AND $filter AND $after
ORDER BY $order DESC NULLS LAST, end DESC, trace_id, span_id
LIMIT {limit:UInt32}
