Array(Tuple(key String, value Tuple($any_value, bytes_value String, array_value Tuple(values Array(Tuple($scalar_values))))))
