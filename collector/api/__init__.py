"""The HTTP API: its routes, with their parameters and response models."""

from collector.api.app import create_app

__all__ = ["create_app"]
