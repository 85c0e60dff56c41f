"""The HTTP API: a file per endpoint, with its parameters, its response models and its routes."""

from collector.api.app import create_app

__all__ = ["create_app"]
