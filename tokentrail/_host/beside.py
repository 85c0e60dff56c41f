"""What an engine's image lacks, from the folder `_beside` of this package; the Dockerfile's target `sdk` makes it."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Final

_NEEDED: Final = (
    "google.rpc",
    "opentelemetry.trace",
    "opentelemetry.sdk",
    "opentelemetry.proto",
    "opentelemetry.exporter.otlp.proto.http",
)


def complete(folder: str) -> None:
    """Puts the folder at the end of the path if a package is missing: what the image has comes first."""
    if folder not in sys.path and not all(map(_is_there, _NEEDED)):
        sys.path.append(folder)


def _is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # the package that it is in
        return False
