-- The steps of processes in their windows, as an array of numbers.
SELECT
    $parts.process_key AS process, toUnixTimestamp64Nano(start) AS start_ns, toInt64(duration_ns),
    ifNull(toFloat64(step), nan), ifNull(toFloat64(prefill_tokens), nan), ifNull(toFloat64(decode_tokens), nan),
    ifNull(toFloat64(running), nan), ifNull(toFloat64(waiting), nan), ifNull(toFloat64(drafted_tokens), nan),
    ifNull(toFloat64(waiting_for_batch), nan), ifNull(toFloat64(waiting_for_kv), nan),
    ifNull(toFloat64(waiting_for_tokens), nan), ifNull(toFloat64(waiting_for_priority), nan)
FROM steps
WHERE $parts.in_windows
ORDER BY process, start_ns
LIMIT {limit:UInt64}
