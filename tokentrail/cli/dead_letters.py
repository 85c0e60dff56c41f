"""`tokentrail dead-letters`: lists acknowledged payloads that the collector's store refused, and sends them again."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import httpx
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from rich.console import Console
from rich.table import Table

from tokentrail.cli.listeners import is_otlp, misnamed, refusal
from tokentrail.cli.output import cells, print_line
from tokentrail.shared.connection import ConnectionSettingError, otlp_client, post_otlp, way_out, why_unanswered
from tokentrail.shared.formatting import without_user

_TIMEOUT_S: Final = 60.0
_DAMAGED: Final = "its bytes are damaged, and might become wrong numbers"
_WAYS_OUT: Final[dict[int, str]] = {
    httpx.codes.UNAUTHORIZED: "; give a key with --header 'Authorization=Bearer KEY'",
    httpx.codes.NOT_FOUND: "; write the address without a path",
}
_GONE: Final = "it is gone: another replay has sent it, or somebody has removed it"
_UNKNOWN = "not known: the file beside it is missing or damaged"


class NotFound(ValueError):
    """There is no data folder, or no dead letter of that name."""


@dataclass(frozen=True)
class DeadLetter:
    """One dead letter: its file of bytes, and the collector's description beside it."""

    name: str
    signal: str
    at: str
    """When it was set aside, RFC 3339."""
    bytes: int
    reason: str
    damaged: bool
    """The disk changed its bytes, so they may be wrong numbers."""
    file: Path

    def content(self) -> str:
        """The spans in it, by service and name."""
        try:
            request = ExportTraceServiceRequest.FromString(self.file.read_bytes())
        except DecodeError:
            return "no OTLP message"
        names: Counter[str] = Counter()
        for resource_spans in request.resource_spans:
            attributes = {item.key: item.value.string_value for item in resource_spans.resource.attributes}
            service = attributes.get("service.name") or "no service"
            names.update(
                f"{span.name or 'no name'} ({service})" for s in resource_spans.scope_spans for span in s.spans
            )
        return ", ".join(f"{n} × {name}" for name, n in names.most_common(20)) or "no span"

    def described(self) -> dict[str, Any]:
        """All of it for JSON."""
        return {**asdict(self), "file": str(self.file)}


def find(data_dir: Path) -> list[DeadLetter]:
    """The dead letters of a collector's data folder, oldest first. Raises NotFound without such a folder."""
    # `tokentrail up` has its collector's data folder inside its own.
    folders = [folder for folder in (data_dir, data_dir / "collector") if (folder / "wal").is_dir()]
    if not folders:
        raise NotFound(f"{data_dir} is not the data folder of a collector: it has no folder wal; set --data-dir")
    files = (file for folder in folders for file in (folder / "dead_letters").glob("*.bin"))
    letters = [letter for file in files if file.is_file() and (letter := _read(file))]
    return sorted(letters, key=lambda letter: (letter.at, letter.name))


def chosen(data_dir: Path, names: Sequence[str]) -> list[DeadLetter]:
    """The dead letters of these names. Raises NotFound that has the missing name."""
    letters = {letter.name: letter for letter in find(data_dir)}
    for name in names:
        if name not in letters:
            raise NotFound(f"there is no dead letter {name} in {data_dir}: tokentrail dead-letters list has the names")
    return [letters[name] for name in dict.fromkeys(names)]


def table(letters: Sequence[DeadLetter]) -> Table:
    """One line for each dead letter."""
    lines = Table("set aside", "bytes", "reason", "name", box=None, pad_edge=False, header_style="dim")
    lines.columns[0].no_wrap = True
    lines.columns[1].justify = "right"
    lines.columns[3].overflow = "fold"  # `show` and `replay` need the whole name
    for letter in letters:
        lines.add_row(*cells(letter.at, str(letter.bytes), _short(letter.reason), letter.name))
    return lines


def show(console: Console, letter: DeadLetter) -> None:
    """Print one dead letter."""
    for key, value in (*letter.described().items(), ("content", letter.content())):
        print_line(console, f"{key:<8} {value}")


def replay(letters: Sequence[DeadLetter], url: str, headers: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Send dead letters to an OTLP/HTTP receiver, and remove those that it takes.

    Yields each name, once it is done, with the reason why it is kept, or "" when it is gone. After one that has no
    answer, none is sent.
    """
    no_answer = ""
    with ExitStack() as stack:
        try:
            http = stack.enter_context(otlp_client(_TIMEOUT_S))
        except ConnectionSettingError as error:
            no_answer = str(error)
        for letter in letters:
            kept = _DAMAGED if letter.damaged else no_answer
            if not kept:
                try:
                    kept = _replay(letter, http, url, headers)
                except _NoAnswerError as error:
                    kept = no_answer = str(error)
                except FileNotFoundError:
                    kept = _GONE
                except OSError as error:
                    kept = f"{error.filename}: {error.strerror}"
            yield letter.name, kept


class _NoAnswerError(Exception):
    """The receiver cannot be asked. The text says why, and how to mend it."""


def _replay(letter: DeadLetter, http: httpx.Client, url: str, headers: Mapping[str, str]) -> str:
    # The collector limits a body as it is sent more than one after decompression, and these are decompressed.
    content = gzip.compress(letter.file.read_bytes(), compresslevel=1)
    shown = without_user(url)
    try:
        answer = post_otlp(http, url, letter.signal, content, {**headers, "content-encoding": "gzip"})
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        wrong = misnamed("OTLP/HTTP", url)
        why = why_unanswered(url, error)
        raise _NoAnswerError(wrong or f"{shown} does not answer ({why}): {way_out(error, '--url')}") from error
    if not is_otlp(answer) and (wrong := misnamed("OTLP/HTTP", url)):
        return wrong
    if answer.status_code != httpx.codes.OK:
        return f"{shown} answered {answer.status_code}: {refusal(answer)}{_WAYS_OUT.get(answer.status_code, '')}"
    try:
        rejected = ExportTraceServiceResponse.FromString(answer.content).partial_success
    except DecodeError:
        return f"{shown} did not answer as an OTLP receiver does"
    if rejected.rejected_spans:
        return f"{shown} rejected {rejected.rejected_spans} of its spans: {rejected.error_message}"
    # The bytes go first: without their description they would be listed as damaged.
    letter.file.unlink(missing_ok=True)
    letter.file.with_suffix(".json").unlink(missing_ok=True)
    return ""


def _read(file: Path) -> DeadLetter | None:
    """Describe a dead letter; None when a replay has just removed it."""
    try:
        info = file.stat()
    except FileNotFoundError:
        return None
    try:
        about = json.loads(file.with_suffix(".json").read_text())
    except (OSError, ValueError):
        about = None
    if not isinstance(about, dict):
        about = {}
    written = datetime.fromtimestamp(info.st_mtime, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return DeadLetter(
        name=file.stem,
        signal=str(about.get("signal", "traces")),
        at=str(about.get("at", written)),
        bytes=info.st_size,
        reason=str(about.get("reason") or _UNKNOWN),
        damaged=bool(about.get("damaged", not about)),
        file=file,
    )


def _short(reason: str) -> str:
    return reason if len(reason) <= 80 else reason[:79] + "…"
