-- The start of the timeseries bucket in which a request ended, in unix nanoseconds.
intDiv(toUnixTimestamp64Nano($parts.counts_at), {step_ns:Int64}) * {step_ns:Int64}
