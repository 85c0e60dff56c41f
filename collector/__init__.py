"""The collector takes OTLP into a write-ahead log, stores it in ClickHouse, and answers `/metrics` and `/api/v1`."""
