-- Labels from the attributes that a setting names (store/definitions.py): pairs of a name and a value, '' without one.
CAST([], 'Array(Tuple(String, String))')
