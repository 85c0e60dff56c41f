"""The `tokentrail` command."""

from __future__ import annotations

import os
import sys
from typing import Final

_EXTRAS: Final = {
    "up": "cli,collector,dashboard",
    "demo": "all",
    "collector": "cli,collector",
    "engine": "cli,engine",
    "dashboard": "cli,dashboard",
    "proxy": "proxy",
    "keys": "cli,collector",
    "restore": "cli,collector",
    "check-store": "cli,collector",
}
"""The extras of a command that needs more than `cli`."""


def main() -> None:
    """Run the command; without the packages that it needs, say which extras bring them."""
    try:
        from tokentrail.cli.app import app

        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("tokentrail"):
            raise
        extras = next((_EXTRAS[word] for word in sys.argv[1:] if word in _EXTRAS), "cli")
        extras = _EXTRAS["up"] if "demo" in sys.argv and "--day" in sys.argv else extras
        sys.exit(f"the tokentrail command needs the package {error.name}: pip install 'tokentrail[{extras}]'")
    except OSError as error:  # of the output: the disk is full
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # takes what Python still has, at its end
        sys.exit(f"error: {error}")
