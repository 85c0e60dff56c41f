-- OTLP's AnyValue. `value` says which of its fields is set.
value Enum8('none' = 0, 'string_value' = 1, 'bool_value' = 2, 'int_value' = 3, 'double_value' = 4, 'array_value' = 5, 'bytes_value' = 7),
$scalar_values
