Array(Tuple(time_unix_nano UInt64, name String, attributes Array(Tuple(key String, value Tuple($any_value)))))
