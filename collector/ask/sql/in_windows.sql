-- Rows that started in the windows of their engine processes.
(service, instance) IN {names:Array(Tuple(String, String))}
    AND start >= fromUnixTimestamp64Nano(arrayMin({lows_ns:Array(Int64)})) AND start <= fromUnixTimestamp64Nano(arrayMax({highs_ns:Array(Int64)}))
    AND toUnixTimestamp64Nano(start) BETWEEN
        transform($parts.process_key, {processes:Array(UInt64)}, {lows_ns:Array(Int64)}, toInt64(9223372036854775807))
        AND transform($parts.process_key, {processes:Array(UInt64)}, {highs_ns:Array(Int64)}, toInt64(0))
