-- Attributes that have labels beside those of the span. A setting may add some (store/definitions.py).
resource
