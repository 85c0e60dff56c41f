-- The requests of processes in their windows, as an array of numbers.
SELECT
    $parts.process_key AS process, $parts.request_key AS key,
    toUnixTimestamp64Nano(requests.start) AS start_ns, toUnixTimestamp64Nano(requests.end) AS end_ns,
    ifNull(toFloat64(ttft_ns), nan),
    ifNull(toFloat64(input_tokens), nan), ifNull(toFloat64(output_tokens), nan), ifNull(toFloat64(cached_tokens), nan),
    ifNull(toFloat64(wait_batch_ns), nan), ifNull(toFloat64(wait_kv_ns), nan),
    ifNull(toFloat64(wait_tokens_ns), nan), ifNull(toFloat64(wait_priority_ns), nan)
FROM requests
WHERE $parts.beside_requests
ORDER BY process, end_ns
LIMIT {limit:UInt64}
