"""The HTTP API. Handlers are thin: a validated question, a query from `collector/sql/queries`, an answer's shape."""

from collector.api.app import create_app

__all__ = ["create_app"]
