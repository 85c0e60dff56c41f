-- Requests that may be the same as given ones, seen by another: they have a response id or a trace in common.
SELECT
    $parts.request_columns
FROM requests
WHERE end >= fromUnixTimestamp64Nano({start_ns:Int64}) - $parts.end_margin
  AND end <= fromUnixTimestamp64Nano({end_ns:Int64}) + $parts.end_margin
  AND (request_id IN {request_ids:Array(String)} OR trace_id IN arrayMap(id -> toFixedString(unhex(id), 16), {trace_ids:Array(String)}))
  AND $filter
LIMIT {limit:UInt32}
