"""OTLP requests: read, checked, divided and cut to what can be stored. Knows no network and no store."""
