-- The waits of requests that began and ended in the window, as collector.timeouts.read has them: of every `one_in`-th one.
-- An error that says that a time was over is a time-out of whoever set it, and no answer of the server.
SELECT
    toUInt32(intDiv(toUnixTimestamp64Nano(start) - {start_ns:Int64}, 1000000)) AS began_ms,
    transform($parts.timeouts_kind, {kinds:Array(UInt64)}, {places:Array(UInt16)}, toUInt16({most:UInt32})) AS place,
    toUInt8(multiIf(status = 'cancelled' OR (status = 'error' AND match(error_type, '(?i)time.?d?.?out|deadline')), 2, status = 'error', 1, 0)) AS ended,
    $parts.known_latencies,
    ifNull(toFloat64(input_tokens), nan) AS prompt,
    toUInt8(multiIf(reasoning_tokens IS NULL, 2, reasoning_tokens > 0, 1, 0)) AS reasons,
    weight * {one_in:UInt32} AS stands_for
FROM requests
WHERE $parts.ended_in_window AND start >= fromUnixTimestamp64Nano({start_ns:Int64}) AND $filter
    AND $parts.request_key % {one_in:UInt32} = 0
