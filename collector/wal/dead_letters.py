"""The dead-letter folder: acknowledged bytes that cannot become rows, each with the reason."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from collector.base.durable import write_durably

logger = logging.getLogger(__name__)


class DeadLetters:
    """Writes the dead letters of one signal. Signals share the folder: segment ids are unique over all of them."""

    def __init__(self, folder: Path, signal: str, count: Callable[[], None] = lambda: None) -> None:
        """`count` is called once for each dead letter."""
        self._folder = folder
        self._count = count
        self._signal = signal

    def keep(self, name: str, data: bytes | memoryview, reason: str, *, damaged: bool = False) -> None:
        """Write `NAME.bin` with the bytes and `NAME.json` with the reason. A second call writes them again.

        `damaged` says that the bytes are not those that were acknowledged.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        about = {
            "name": name, "signal": self._signal, "at": at, "bytes": len(data), "reason": reason, "damaged": damaged
        }  # fmt: skip
        if not (self._folder / f"{name}.json").exists():
            self._count()
        write_durably(self._folder / f"{name}.bin", data)
        write_durably(self._folder / f"{name}.json", json.dumps(about, indent=2).encode())
        logger.error("%s that cannot be stored are kept in %s as %s: %s", self._signal, self._folder, name, reason)
