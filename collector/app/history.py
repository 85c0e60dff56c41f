"""Makes a store with a past, as if a collector had been there: `python -m collector.app.history FOLDER < BODIES`.

For the demo and the tests. The bodies are OTLP requests with spans in the order of time, each behind its length in
eight bytes. They are stored and explained as a collector does it, and then their rows say that they came when their
requests ended: else burn rates, which count by arrival, would show one burst at the time of the filling.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Final

from collector.base.data_dir import lock_folder
from collector.base.status import IngestStatus
from collector.causes.stage.backlog import Waits
from collector.causes.stage.stage import Explainer
from collector.otlp.signals import TRACES
from collector.store.insert import insert_otlp
from collector.store.schema import apply_schema
from collector.store.store import Store

LENGTH_BYTES: Final = 8
_TOGETHER_BYTES: Final = 16 << 20
"""Bodies of one insert."""
_AT_ONCE: Final = Waits(soon_s=0, patience_s=0, late_s=0, others_s=0)
"""All steps are there."""
_CAME: Final = "ALTER TABLE {} UPDATE ingested_at = toDateTime64(end, 3, 'UTC') + INTERVAL 1 SECOND WHERE true"


def fill(data_dir: Path, bodies: Iterable[bytes]) -> None:
    """Store and explain the bodies in the embedded store of a folder that no collector uses.

    Raises `StoreError` when the folder is used, and `RefusedError` for bytes that are no OTLP.
    """
    with lock_folder(data_dir):
        store = Store.open(f"chdb://{data_dir / 'store'}")
        try:
            apply_schema(store)
            for number, some in enumerate(_together(bodies)):
                insert_otlp(store, TRACES, some, f"history-{number}")
            explainer = Explainer(store, IngestStatus(), waits=_AT_ONCE)
            while not explainer.run_once():
                pass
            for table in ("requests", "causes"):
                store.client().command(_CAME.format(table), settings={"mutations_sync": 2})
        finally:
            store.close()


def _together(bodies: Iterable[bytes]) -> Iterator[bytes]:
    some: list[bytes] = []
    for body in bodies:
        some.append(body)
        if sum(map(len, some)) > _TOGETHER_BYTES:
            yield b"".join(some)
            some = []
    if some:
        yield b"".join(some)


def _read(file: IO[bytes]) -> Iterator[bytes]:
    while length := file.read(LENGTH_BYTES):
        yield file.read(int.from_bytes(length))


if __name__ == "__main__":
    fill(Path(sys.argv[1]), _read(sys.stdin.buffer))
