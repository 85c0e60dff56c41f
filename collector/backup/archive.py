"""The file format of a backup: a tar. Its last member lists all others.

    tables/tokens/20261121_1_5_1/data.bin     a file of a part of a table
    settings/slos.yaml                        the SLO file
    manifest.json                             every file's size and SHA-256, every part's rows, the tables' statements

A file without a manifest is half of a backup.
"""

from __future__ import annotations

import hashlib
import re
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ValidationError, field_validator

MANIFEST: Final = "manifest.json"
FORMAT: Final = 1
_CHUNK: Final = 1024 * 1024
_MOST_MANIFEST: Final = 256 * _CHUNK
_NAME: Final = re.compile(r"tables/\w+(/[\w.%@~-]+)+|settings/[^/]+", re.ASCII)
"""An SLO file may have any name."""
_PART: Final = re.compile(r"\w+", re.ASCII)
_CREATE: Final = re.compile(
    r"CREATE TABLE default\.(\w+) \([^;]*?\) ENGINE = \w*MergeTree\b(?![^;]*\bSELECT\b)[^;]*", re.ASCII | re.IGNORECASE
)


class BackupError(RuntimeError):
    """The backup cannot be made or restored; the message says why."""


class File(BaseModel):
    """One file of a backup."""

    size: int
    sha256: str


class Table(BaseModel):
    """One table: the statement that creates it, and the rows of each part."""

    create: str
    parts: dict[str, int]

    @property
    def rows(self) -> int:
        """Rows of all parts; those that a lightweight delete has masked count too."""
        return sum(self.parts.values())


class Manifest(BaseModel):
    """The contents of a backup."""

    format: int
    made: str
    """When the backup was made, RFC 3339."""
    until: str
    """Payloads that were acknowledged before this time are in the backup."""
    clickhouse: str
    tables: dict[str, Table]
    files: dict[str, File]

    @field_validator("tables")
    @classmethod
    def _are_tables(cls, tables: dict[str, Table]) -> dict[str, Table]:
        """Refuse a statement that does more than to create its table, and a part's name that leads elsewhere."""
        for name, table in tables.items():
            created = _CREATE.fullmatch(table.create)
            if not created or created[1] != name or not all(map(_PART.fullmatch, table.parts)):
                msg = f"{name} is no table"
                raise ValueError(msg)
        return tables


def pack(sources: Sequence[tuple[str, Path]], manifest: Manifest) -> Iterator[bytes]:
    """Yield the bytes of a tar with these files, by name, and with the manifest, which gets their list here."""
    for name, path in sources:
        digest = hashlib.sha256()
        size = path.stat().st_size
        yield _header(name, size)
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
                yield chunk
            if file.tell() != size:
                msg = f"{path} changed while it was read"
                raise BackupError(msg)
        yield _padding(size)
        manifest.files[name] = File(size=size, sha256=digest.hexdigest())
    text = manifest.model_dump_json(indent=1).encode()
    yield _header(MANIFEST, len(text)) + text + _padding(len(text)) + bytes(2 * tarfile.BLOCKSIZE)


def unpack(archive: Path, folder: Path) -> Manifest:
    """Write the files of a backup into an empty folder.

    Raises `BackupError` unless they are those of the manifest, byte by byte; OSError when the disk fails.
    """
    manifest: Manifest | None = None
    found: dict[str, File] = {}
    try:
        with tarfile.open(archive, "r|") as tar:
            for member in tar:
                content = tar.extractfile(member) if member.isreg() else None
                if content is None or manifest is not None or not (_is_ours(member.name) or member.name == MANIFEST):
                    raise _no_backup(archive, f"it has {member.name!r}")
                if member.name == MANIFEST:
                    manifest = Manifest.model_validate_json(content.read(_MOST_MANIFEST))
                    continue
                digest = hashlib.sha256()
                path = folder / member.name
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("xb") as file:
                    while chunk := content.read(_CHUNK):
                        digest.update(chunk)
                        file.write(chunk)
                found[member.name] = File(size=member.size, sha256=digest.hexdigest())
    except tarfile.TarError as error:
        if found:
            msg = f"{archive} is damaged after {len(found)} of its files: {error}"
            raise BackupError(msg) from error
        raise _no_backup(archive, "it is no tar") from error
    except ValidationError as error:
        raise _no_backup(archive, f"its {MANIFEST} is that of something else") from error
    if manifest is None:
        msg = f"{archive} has no manifest: its end is missing"
        raise BackupError(msg)
    if manifest.format != FORMAT:
        msg = f"{archive} has format {manifest.format}, and this version reads format {FORMAT}"
        raise BackupError(msg)
    if found != manifest.files:
        wrong = sorted(name for name in found | manifest.files if found.get(name) != manifest.files.get(name))
        msg = f"{archive} is damaged: {', '.join(wrong[:3])} and {len(wrong) - 1} others are not as they were"
        raise BackupError(msg)
    return manifest


def _no_backup(archive: Path, reason: str) -> BackupError:
    way_out = "`tokentrail backup FILE` makes one; unpack it first if it was compressed"
    return BackupError(f"{archive} is not a backup of tokentrail, because {reason}: {way_out}")


def _is_ours(name: str) -> bool:
    return bool(_NAME.fullmatch(name)) and not {".", ".."} & {*name.split("/")}


def _header(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    info.mode = 0o600
    return info.tobuf(tarfile.PAX_FORMAT)


def _padding(size: int) -> bytes:
    return bytes(-size % tarfile.BLOCKSIZE)
