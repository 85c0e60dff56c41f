-- The labels of a request that was joined, as held_span.sql keeps them.
mapFromArrays(
    arrayMap(key -> substring(key, 18), arrayFilter(key -> startsWith(key, 'tokentrail.label.'), mapKeys(text))),
    arrayFilter((value, key) -> startsWith(key, 'tokentrail.label.'), mapValues(text), mapKeys(text)))
