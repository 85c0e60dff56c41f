-- One page of request rows.
SELECT
    $parts.request_columns
FROM requests
WHERE $parts.ended_in_window AND $filter
ORDER BY $order DESC NULLS LAST, end DESC, trace_id, span_id
LIMIT {limit:UInt32} OFFSET {offset:UInt64}
