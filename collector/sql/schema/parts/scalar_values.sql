string_value String, bool_value Bool, int_value Int64, double_value Float64
