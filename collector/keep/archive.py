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
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, NonNegativeInt, StringConstraints, ValidationError

MANIFEST: Final = "manifest.json"
FORMAT: Final = 1
_CHUNK: Final = 1024 * 1024
_MOST_MANIFEST: Final = 256 * _CHUNK
_MOST_EXTENSION: Final = 64 * 1024
"""Bytes of a header that gives a member a long name or a large size."""
_NAME: Final = re.compile(r"tables/(\w+)/(\w+)/[\w.%@~-]+|settings/[^/]+", re.ASCII)
"""An SLO file may have any name that can be printed."""
_EXTENSIONS: Final = {"path", "size"}
"""What such a header may say."""


Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_]+$")]
Time = Annotated[str, StringConstraints(pattern=r"^[0-9TZ:.+-]*$")]
"""RFC 3339. It is printed, so nothing else may stand here."""


class BackupError(RuntimeError):
    """The backup cannot be made or restored; the message says why."""


def is_ours(name: str) -> bool:
    """Tell whether a file of a backup may have this name."""
    return bool(_NAME.fullmatch(name)) and name.isprintable() and not {".", ".."} & {*name.split("/")}


def _checked(name: str) -> str:
    if not is_ours(name):
        msg = "a file of a backup has no such name"
        raise ValueError(msg)
    return name


class File(BaseModel):
    """One file of a backup."""

    size: int
    sha256: str


class Table(BaseModel):
    """One table: the statement that created it, and the rows of each part."""

    create: str
    """It is compared with this version's own, and never run."""
    parts: dict[Name, NonNegativeInt]

    @property
    def rows(self) -> int:
        """Rows of all parts; those that a lightweight delete has masked count too."""
        return sum(self.parts.values())


class Manifest(BaseModel):
    """The contents of a backup."""

    format: int
    made: Time
    """When the backup was made."""
    until: Time
    """Payloads that were acknowledged before this time are in the backup."""
    clickhouse: str
    tables: dict[Name, Table]
    files: dict[Annotated[str, AfterValidator(_checked)], File]


class _Foreign(ValueError):
    """Something that no backup has; the message is a reason."""


class _Header(tarfile.TarInfo):
    """A header of a tar, refused before tarfile acts on it: links, folders, devices, sparse files, endless names."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Header:
        header = super().frombuf(buf, encoding, errors)
        is_extension = header.type == tarfile.XHDTYPE and 0 <= header.size <= _MOST_EXTENSION
        if not (header.type == tarfile.REGTYPE or is_extension):
            msg = f"it has {header.name[:200]!r}, which is no plain file"
            raise _Foreign(msg)
        return header


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
    unpacked: dict[str, File] = {}
    try:
        with tarfile.open(archive, "r|", tarinfo=_Header) as tar:
            for member in tar:
                content = tar.extractfile(member)
                if content is None or manifest is not None or not (is_ours(member.name) or member.name == MANIFEST):
                    raise _no_backup(archive, f"it has {member.name[:200]!r}")
                if member.size < 0 or member.pax_headers.keys() - _EXTENSIONS:
                    raise _no_backup(archive, f"it has {member.name[:200]!r}, which is no plain file")
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
                unpacked[member.name] = File(size=member.size, sha256=digest.hexdigest())
    except _Foreign as error:
        raise _no_backup(archive, str(error)) from error
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        where = ".".join(map(str, first["loc"]))[:200]
        raise _no_backup(archive, f"its {MANIFEST} is that of something else ({where!r}: {first['msg']})") from error
    except (tarfile.TarError, ValueError, LookupError, OverflowError) as error:  # tarfile lets some escape
        if unpacked:
            msg = f"{archive} is damaged after {len(unpacked)} of its files: {error}"
            raise BackupError(msg) from error
        raise _no_backup(archive, "it is no tar") from error
    if manifest is None:
        msg = f"{archive} has no manifest: its end is missing"
        raise BackupError(msg)
    if manifest.format != FORMAT:
        msg = f"{archive} has format {manifest.format}, and this version reads format {FORMAT}"
        raise BackupError(msg)
    if unpacked != manifest.files:
        wrong = sorted(name for name in unpacked | manifest.files if unpacked.get(name) != manifest.files.get(name))
        msg = f"{archive} is damaged: {', '.join(wrong[:3])} and {len(wrong) - 1} others are not as they were"
        raise BackupError(msg)
    for name in unpacked:
        if (parsed := _NAME.fullmatch(name)) and parsed[1] and not _has_part(manifest, parsed[1], parsed[2]):
            raise _no_backup(archive, f"it has {name!r}, and its {MANIFEST} has no such part")
    return manifest


def _no_backup(archive: Path, reason: str) -> BackupError:
    way_out = "`tokentrail backup FILE` makes one; unpack it first if it was compressed"
    return BackupError(f"{archive} is not a backup of tokentrail, because {reason}: {way_out}")


def _has_part(manifest: Manifest, table: str, part: str) -> bool:
    return table in manifest.tables and part in manifest.tables[table].parts


def _header(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    info.mode = 0o600
    return info.tobuf(tarfile.PAX_FORMAT)


def _padding(size: int) -> bytes:
    return bytes(-size % tarfile.BLOCKSIZE)
