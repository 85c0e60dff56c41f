intDiv(toUnixTimestamp64Nano(end), {step_ns:Int64}) * {step_ns:Int64}
