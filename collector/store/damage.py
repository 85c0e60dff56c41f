"""Parts of tables that the disk has damaged: an error that names one, and the check of a store that finds them all.

`python -m collector.store.damage DATA_DIR [--set-aside]` is the check, as `tokentrail check-store` runs it.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from clickhouse_connect.driver.exceptions import ClickHouseError, DatabaseError

from collector.data_dir import lock_folder
from collector.store.errors import StoreError
from collector.store.store import Store
from tokentrail.shared import private_files
from tokentrail.shared.folders import of_a_collector

_CODES: Final = frozenset(
    {
        32,  # ATTEMPT_TO_READ_AFTER_EOF
        33,  # CANNOT_READ_ALL_DATA
        40,  # CHECKSUM_DOESNT_MATCH
        74,  # CANNOT_READ_FROM_FILE_DESCRIPTOR
        107,  # FILE_DOESNT_EXIST
        117,  # INCORRECT_DATA
        131,  # TOO_LARGE_STRING_SIZE
        226,  # NO_FILE_IN_DATA_PART
        246,  # CORRUPTED_DATA
        261,  # UNKNOWN_COMPRESSION_METHOD
        271,  # CANNOT_DECOMPRESS
        432,  # UNKNOWN_CODEC
    }
)
"""ClickHouse errors of a part that cannot be read. It names the part in errors of other kinds too."""
_READING: Final = re.compile(r"while reading from part (?:\S*/)?([^/\s]+)/? in table (?:\S+\.)?(\w+)")
_CHECK: Final = "CHECK TABLE `{table}` SETTINGS check_query_single_value_result = 0"
_JSON: Final = "JSONCompact"
_REMEDY: Final = "'tokentrail check-store' finds all damaged parts and sets them aside"


@dataclass(frozen=True)
class DamagedPart:
    """A part of a table, which holds rows of one day."""

    table: str
    name: str
    reason: str
    is_detached: bool
    """ClickHouse has set it aside when it started. Other damaged parts make queries fail."""


def damage_of(error: BaseException) -> str | None:
    """Say which part was damaged when a query failed; None when the error has another cause."""
    match = _READING.search(str(error)) if isinstance(error, DatabaseError) and error.code in _CODES else None
    if match is None:
        return None
    return f"the part {match[1]} of the table {match[2]} is damaged on the store's disk: {_REMEDY}"


def find(store: Store, folder: Path) -> list[DamagedPart]:
    """Read every file of every table of an embedded store and compare it with its checksum.

    `folder` has the parts that were set aside, and the marks of those of which a `set_aside` was cut off.
    """
    client = store.client()
    tables = client.query(
        "SELECT name FROM system.tables WHERE database = currentDatabase() AND engine LIKE '%MergeTree' ORDER BY name"
    ).result_rows
    damaged = [
        DamagedPart(table, name, message, is_detached=False)
        for (table,) in tables
        for name, is_sound, message in json.loads(client.raw_query(_CHECK.format(table=table), fmt=_JSON))["data"]
        if not is_sound
    ]
    detached = client.query(
        "SELECT table, name, reason FROM system.detached_parts WHERE database = currentDatabase() ORDER BY table, name"
    ).result_rows
    return damaged + [
        DamagedPart(table, name, reason or "it was not set aside to the end", is_detached=True)
        for table, name, reason in detached
        if (reason or "").startswith("broken") or _mark(folder / table / name).exists()
    ]


def set_aside(store: Store, part: DamagedPart, folder: Path) -> Path:
    """Move a part out of its table, into a folder of its table's name; returns its new place.

    ClickHouse does not know why a part is detached. The mark says it, should this process be killed before the move.
    A part that goes to another file system has its new name when all of it is copied, and is removed then.
    """
    detached = store.table_folder(part.table) / "detached" / part.name
    target = folder / part.table / part.name
    target.parent.mkdir(parents=True, exist_ok=True)
    _mark(target).touch()
    if not part.is_detached:
        store.client().command(f"ALTER TABLE `{part.table}` DETACH PART '{part.name}'")
    if not target.exists():
        _move(detached, target)
    if detached.exists():
        shutil.rmtree(detached)
    _mark(target).unlink()
    return target


def _move(detached: Path, target: Path) -> None:
    try:
        detached.rename(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        copy = target.with_name(f"{target.name}.copying")
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(detached, copy)
        copy.rename(target)


def _mark(target: Path) -> Path:
    return target.with_name(f"{target.name}.moving")


def main(arguments: list[str]) -> int:
    """Print the damaged parts; the exit status is 1 when some stay where they are."""
    parser = argparse.ArgumentParser(prog="python -m collector.store.damage")
    parser.add_argument("data_dir", type=Path)
    parser.add_argument("--set-aside", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    data_dir = of_a_collector(options.data_dir)
    os.umask(private_files.UMASK)
    if not (data_dir / "store").is_dir():
        sys.stderr.write(f"{data_dir} has no embedded store: name the collector's --data-dir\n")
        return 2
    try:
        with lock_folder(data_dir):
            return _check(data_dir, moves=options.set_aside, as_json=options.json)
    except (StoreError, ClickHouseError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 2


def _check(data_dir: Path, *, moves: bool, as_json: bool) -> int:
    store, folder = Store.open(f"chdb://{(data_dir / 'store').resolve()}"), data_dir / "damaged_parts"
    parts: list[tuple[DamagedPart, Path | None]] = []
    try:
        for part in find(store, folder):
            parts.append((part, set_aside(store, part, folder) if moves else None))
            if not as_json:
                _tell(*parts[-1])
    finally:
        store.close()
    if as_json:
        told = [
            {"table": part.table, "part": part.name, "reason": part.reason, "set_aside": moved and str(moved)}
            for part, moved in parts
        ]
        sys.stdout.write(json.dumps({"damaged_parts": told}) + "\n")
    elif not parts:
        sys.stdout.write("all parts are sound\n")
    elif not moves:
        sys.stdout.write(
            f"{len(parts)} damaged parts. --set-aside moves them out of the store, so that all other rows can be read\n"
        )
    return 1 if parts and not moves else 0


def _tell(part: DamagedPart, moved: Path | None) -> None:
    place = f" -> {moved}" if moved else ""
    sys.stdout.write(f"{part.table} {part.name}: {part.reason}{place}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
