-- A function from an attribute's key to a count. A span without the attribute, or with a number that is no count, has NULL.
-- It stands behind $reported: WITH $reported AS reported, $counted AS counted, counted('key') AS n
(key -> accurateCastOrNull(reported(key), 'UInt32'))
