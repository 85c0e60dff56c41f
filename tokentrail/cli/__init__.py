"""The `tokentrail` command."""

from tokentrail.cli.app import app

__all__ = ["app"]
