-- Whether something ran, from `$began_ns` until `$until_ns`, in one of some stretches of time, and its request ended about then.
-- The stretches are sorted and lie apart: the last one that began before `$until_ns` is also the last one to end.
end > fromUnixTimestamp64Nano(arrayMin({from_ns:Array(Int64)}))
    AND end < fromUnixTimestamp64Nano(arrayMax({until_ns:Array(Int64)})) + $parts.end_margin
    AND $until_ns > arrayMin({from_ns:Array(Int64)})
    AND transform(roundDown($until_ns - 1, {from_ns:Array(Int64)}), {from_ns:Array(Int64)}, {until_ns:Array(Int64)}, 0::Int64) > $began_ns
