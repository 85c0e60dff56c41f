-- Whether something ran, from `$began_ns` until `$until_ns`, in one of some stretches of time, and its request ended about then.
end > fromUnixTimestamp64Nano(arrayMin({from_ns:Array(Int64)}))
    AND end < fromUnixTimestamp64Nano(arrayMax({until_ns:Array(Int64)})) + $parts.end_margin
    AND arrayExists((low, high) -> $until_ns > low AND $began_ns < high, {from_ns:Array(Int64)}, {until_ns:Array(Int64)})
