Array(Tuple(key String, value Tuple(string_value String)))
