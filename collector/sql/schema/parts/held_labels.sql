-- The labels of a request that was joined, as held_span.sql keeps them.
mapApply((key, value) -> (substring(key, 18), value), mapFilter((key, _) -> startsWith(key, 'tokentrail.label.'), text))
