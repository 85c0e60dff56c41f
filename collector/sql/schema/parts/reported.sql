-- A function from an attribute's key to its number. A span without the attribute did not report it: NaN. `number[key]` alone is
-- for attributes whose absence means 0. Both become NULL in a column: accurateCastOrNull(reported('key'), 'UInt32').
(key -> if(mapContains(number, key), number[key], nan))
