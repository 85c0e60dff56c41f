-- What a comparison reads of each request that ended, of one in `of` of them. NaN: not known, or it cannot exist. `more`: how SLOs
-- judge it, and columns by which requests are compared like for like. A request with the weight 0 stands for none.
SELECT
    toFloat64(bitShiftRight($parts.request_key, 11)), toUnixTimestamp64Nano(start) / 1e9, toUnixTimestamp64Nano(end) / 1e9, weight,
    if(status = 'ok', ifNull(toFloat64(ttft_ns), nan), nan), if(status = 'ok', ifNull(tpot_ns, nan), nan),
    if(status = 'ok', toFloat64(e2e_ns), nan), if(status = 'ok', ifNull(toFloat64(nullIf(gap_ns, 0)), nan), nan),
    ifNull(toFloat64(input_tokens), nan), ifNull(toFloat64(cached_tokens), nan), ifNull(toFloat64(output_tokens), nan),
    $more
FROM requests
WHERE $parts.ended_in_window AND $filter AND $parts.request_key % {of:UInt32} = 0 AND weight > 0
