"""The collector: OTLP in → WAL → ClickHouse → SLOs → `/metrics` and `/api/v1`."""
