"""The deduplication logs of an embedded store: after a crash, the table must know the inserts whose rows it has."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import struct
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Final

logger = logging.getLogger(__name__)

_RECORD: Final = re.compile(rb"^([12])\t(\S+)\t(\S+)\n", re.MULTILINE)
"""A line of a log: 1 adds a part and 2 drops it, the part's name, a hash of the insert's token."""
_ADD: Final = b"1"
_GET_FLAGS: Final = 0x80086601
_SET_FLAGS: Final = 0x40086602
_FLAGS: Final = struct.Struct("l")
_WRITE_THROUGH: Final = 0x8
"""FS_IOC_GETFLAGS, FS_IOC_SETFLAGS and FS_SYNC_FL of Linux, as `chattr +S` uses them."""
_PART: Final = re.compile(r"([^_]+)_(\d+)_(\d+)_\d+(?:_\d+)?")
"""A part's name: its partition, its first and its last block, its level, its mutation."""


def forget_lost_parts(folder: Path) -> int:
    """Take back the tokens of inserts that stored no rows; returns their number.

    A table recognises an insert that comes again by its token. ClickHouse writes the token down before it gives the
    rows their place:

        1  append "all_3_3_0" and a hash of the token to the log
        2  rename the folder tmp_insert_all_3_3_0 to all_3_3_0

    A process that is killed between the two leaves a token without rows. The segment is inserted again after the
    restart, the table takes that for a repetition, and the rows are lost. So the token is taken back here, before chDB
    opens the folder. A table stores one part at a time, so such tokens are the newest of its log. A folder that another
    process has open is left as it is.
    """
    if not (folder / "store").is_dir():
        return 0
    with (folder / "status").open("ab") as status:
        try:
            fcntl.flock(status, fcntl.LOCK_EX | fcntl.LOCK_NB)  # chDB holds this lock while it has the folder
        except BlockingIOError:
            return 0
        return sum(_forget_in_table(logs) for logs in folder.glob("store/*/*/deduplication_logs"))


def write_through(logs: Path) -> bool:
    """Have a table's tokens on the disk before the rows; False when the file system cannot. Raises OSError.

    ClickHouse appends a token to the log and does not sync it. A power cut may leave the rows, which ClickHouse syncs,
    without their token: the segment is inserted again, and the table takes it. So the file system is told to sync each
    append by itself (`chattr +S`). New files of the folder are told so too, by ext4 and XFS; by Btrfs they are not, so
    call this again after inserts. Where there is no such attribute, the tokens until now are synced.
    """
    results = [_write_file_through(path) for path in (logs, *logs.iterdir())]
    return all(results)


def _write_file_through(path: Path) -> bool:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        (flags,) = _FLAGS.unpack(fcntl.ioctl(descriptor, _GET_FLAGS, bytes(_FLAGS.size)))
        if flags & _WRITE_THROUGH:
            return True
        fcntl.ioctl(descriptor, _SET_FLAGS, _FLAGS.pack(flags | _WRITE_THROUGH))
        os.fsync(descriptor)  # what was written before
    except OSError:
        os.fsync(descriptor)
        return False
    finally:
        os.close(descriptor)
    return True


def _forget_in_table(logs: Path) -> int:
    files = sorted(logs.glob("deduplication_log_*.txt"), key=lambda path: int(path.stem.rpartition("_")[2]))
    parts = [blocks for path in logs.parent.iterdir() if (blocks := _blocks(path.name))]
    lost = list(takewhile(lambda record: not _is_there(record[0], parts), _newest_first(files)))
    if lost:
        _append(files[-1], [b"2\t%b\t%b\n" % record for record in lost])
        logger.warning("%d inserts into %s were cut off by a crash and are made again", len(lost), logs.parent)
    return len(lost)


def _newest_first(files: list[Path]) -> Iterator[tuple[bytes, bytes]]:
    """Part and token of the records that hold."""
    dropped = set()
    for path in reversed(files):
        for operation, part, token in reversed(_RECORD.findall(path.read_bytes())):
            if operation != _ADD:
                dropped.add(token)
            elif token not in dropped:
                yield part, token


def _blocks(part: str) -> tuple[str, int, int] | None:
    """The partition, the first and the last block of a part; None when this is no name of a part."""
    match = _PART.fullmatch(part)
    return (match[1], int(match[2]), int(match[3])) if match else None


def _is_there(part: bytes, parts: list[tuple[str, int, int]]) -> bool:
    """Tell whether one of the parts is this one, or the merged one that has its blocks."""
    blocks = _blocks(part.decode())
    if blocks is None:
        return True
    partition, first, last = blocks
    return any(other == partition and begin <= first and last <= end for other, begin, end in parts)


def _append(file: Path, lines: list[bytes]) -> None:
    """Append lines. A line that a crash cut short goes: chDB reads no further than it."""
    with file.open("rb+") as log:
        log.seek(log.read().rfind(b"\n") + 1)
        log.truncate()
        log.writelines(lines)
