-- The class of the exception that a span's events tell of, without its module, or ''.
left(extract(arrayFirst(a -> a.key = 'exception.type', arrayFlatten(events.attributes)).value.string_value, '([A-Za-z_][A-Za-z0-9_]*)$$'), 256)
