-- Requests that ran in the windows of their engine processes and have ended. `processes`, `lows_ns` and `highs_ns` belong together.
requests.end >= fromUnixTimestamp64Nano(arrayMin({lows_ns:Array(Int64)}))
    AND requests.end < fromUnixTimestamp64Nano(arrayMax({highs_ns:Array(Int64)})) + $parts.end_margin
    AND vantage = 'server'
    AND toUnixTimestamp64Nano(requests.end) >= transform($parts.process_key, {processes:Array(UInt64)}, {lows_ns:Array(Int64)}, toInt64(9223372036854775807))
    AND toUnixTimestamp64Nano(requests.start) <= transform($parts.process_key, {processes:Array(UInt64)}, {highs_ns:Array(Int64)}, toInt64(0))
