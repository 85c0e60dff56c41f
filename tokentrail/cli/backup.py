"""`tokentrail backup`, `restore` and `check-store`: the embedded store as one file, and back, and its damaged parts."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import httpx
from rich.console import Console

from tokentrail.cli import parts
from tokentrail.cli.output import print_json
from tokentrail.cli.processes import ProcessFailed, uninterrupted
from tokentrail.shared import private_files
from tokentrail.shared.connection import client, in_words, way_out
from tokentrail.shared.formatting import without_user

_MANIFEST: Final = "manifest.json"
_CHUNK: Final = 1024 * 1024
_KEYS: Final[dict[int, str]] = dict.fromkeys(
    (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN), ": set TOKENTRAIL_API_KEY to a key with the role admin"
)


def backup(console: Console, *, target: Path, url: str, as_json: bool = False) -> Path:
    """Ask the collector at `url` for a backup, write it to a file, read the file again and check it.

    A folder as target gets a file with the time in its name. Raises ProcessFailed, and leaves no file behind.
    """
    if target.is_dir():
        target /= time.strftime("tokentrail-%Y%m%dT%H%M%SZ.tar", time.gmtime())
    if target.exists():
        raise ProcessFailed(f"{target} is there already: name another file, or a folder")
    if not target.parent.is_dir():
        raise ProcessFailed(f"{target.parent} is no folder: make it, or name another file")
    partial = target.with_name(f"{target.name}.partial")
    answered = False
    try:
        with client(url, timeout_s=60) as http, http.stream("POST", "/api/v1/backup") as answer:
            answered = True
            if answer.status_code != httpx.codes.OK:
                told = f"the collector at {without_user(url)} makes no backup: {_detail(answer.read())}"
                raise ProcessFailed(told + _KEYS.get(answer.status_code, ""))
            manifest = _take(answer, partial, target)
    except (httpx.HTTPError, httpx.InvalidURL, OSError, tarfile.TarError, ValueError, KeyError) as error:
        told = in_words(error)
        if isinstance(error, httpx.TransportError) and not answered:
            told += f": {way_out(error, '--api')}"
        raise ProcessFailed(f"no backup of the collector at {without_user(url)}: {told}") from error
    rows = {name: sum(table["parts"].values()) for name, table in manifest["tables"].items()}
    size = target.stat().st_size
    if as_json:
        print_json({"file": str(target), "bytes": size, "rows": rows, "until": manifest["until"]})
        return target
    console.print(
        f"{target}: {size} bytes, {sum(rows.values())} rows, read again and sound",
        highlight=False,
        markup=False,
    )
    console.print(f"all that was acknowledged before {manifest['until']} is in it", highlight=False)
    return target


def _take(answer: httpx.Response, partial: Path, target: Path) -> dict[str, Any]:
    """Write an answer to `partial`, which becomes `target` when all of it is sound; returns the manifest.

    `partial` is opened when the collector has begun, which makes one backup at a time: the file of a command that runs
    already is left alone.
    """
    try:
        with private_files.create(partial) as file:
            for chunk in answer.iter_raw():
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        manifest = verify(partial)
        partial.replace(target)
        _sync(target.parent)
    finally:
        partial.unlink(missing_ok=True)
    return manifest


def _sync(folder: Path) -> None:
    """Make a new name in a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def verify(archive: Path) -> dict[str, Any]:
    """Read a backup and compare every file with the manifest, which is returned. Raises ValueError when they differ."""
    files: dict[str, dict[str, Any]] = {}
    manifest: dict[str, Any] | None = None
    with tarfile.open(archive, "r|") as tar:
        for member in tar:
            content = tar.extractfile(member) if member.isreg() else None
            if content is None:
                raise ValueError(f"{member.name} is no file")
            if member.name == _MANIFEST:
                manifest = json.load(content)
                continue
            digest = hashlib.sha256()
            while chunk := content.read(_CHUNK):
                digest.update(chunk)
            files[member.name] = {"size": member.size, "sha256": digest.hexdigest()}
    if manifest is None:
        raise ValueError("its end is missing")
    if manifest["files"] != files:
        raise ValueError("a file is not as the collector read it")
    return manifest


def restore(*, archive: Path, target: str, as_json: bool = False) -> None:
    """Make a data folder, or the tables of a server, from a backup. Raises ProcessFailed."""
    command = parts.command("collector.keep", str(archive.absolute()), target)
    if _run([*command, *_json(wanted=as_json)]):
        raise ProcessFailed(f"{without_user(target)} was not made")


def check_store(data_dir: Path, *, set_aside: bool, as_json: bool = False) -> int:
    """Find the damaged parts of the store in a data folder, with the collector's own code; returns the exit status."""
    command = parts.command("collector.store.damage", str(data_dir), *(["--set-aside"] if set_aside else []))
    return _run([*command, *_json(wanted=as_json)])


def _json(*, wanted: bool) -> list[str]:
    return ["--json"] if wanted else []


def _run(command: Sequence[str]) -> int:
    """Run a part of the collector; returns its exit status. Ctrl-C and SIGTERM end it, once it has tidied up."""
    process = subprocess.Popen(command, env=parts.environment())
    try:
        return process.wait()
    except KeyboardInterrupt:
        with uninterrupted():
            process.terminate()
            process.wait()
        raise


def _detail(body: bytes) -> str:
    try:
        return str(json.loads(body)["detail"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode(errors="replace")
