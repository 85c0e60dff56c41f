-- The text of an attribute's value `v`: '' for an array, bytes and none.
multiIf(
    v.value = 'int_value', toString(v.int_value),
    v.value = 'double_value', toString(v.double_value),
    v.value = 'bool_value', if(v.bool_value, 'true', 'false'),
    v.string_value)
