"""The `tokentrail` command."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command; without the packages that it needs, say which extra brings them."""
    try:
        from tokentrail.cli.app import app
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("tokentrail"):
            raise
        sys.exit(f"the tokentrail command needs the package {error.name}: pip install 'tokentrail[cli]'")
    app()
