-- The attributes of a span that are strings. Settings may fill the tenant and the SLO class in (store/definitions.py).
CAST((span.attributes.key, span.attributes.value.string_value), 'Map(String, String)')
