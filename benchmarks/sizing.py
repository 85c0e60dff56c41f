"""The tables of docs/storage.md, computed from the results of the other benchmarks: nothing is measured here.

`python -m benchmarks.sizing` prints them, `--write` puts them into the page. A test holds the page to the results.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = ROOT / "docs" / "storage.md"
SEVERAL: Final = ROOT / "benchmarks" / "results" / "several_collectors.json"
RATES: Final = (1_000, 10_000, 100_000, 1_000_000)
"""Output tokens per second of all engines together."""
HEADROOM: Final = 2.0
"""A core is planned to be half busy: bursts, merges and queries take the other half."""
EMBEDDED_SHARE: Final = 0.5
"""Of a host's cores, those that a collector with its embedded store may need before a server is the better store."""
DAY_S: Final = 86400
RETENTION_DAYS: Final = 7
BATCH: Final = 64
"""Requests in a step of an engine, in the benchmark of the SDK."""


@dataclass(frozen=True)
class Constants:
    """Measured costs of one token."""

    sdk_ns: float
    """CPU of the SDK on the realistic requests: the engine's thread and the exporter's."""
    engine_thread_ns: float
    """The part of it on the engine's own thread."""
    collector_us: float
    """CPU of the collector with its embedded store, over all spans of a request, for each token."""
    wire_bytes: float
    """Uncompressed."""
    rest_bytes: float
    """In the table of tokens, at rest."""
    spans_per_token: float

    @classmethod
    def read(cls, results: Path = ROOT / "benchmarks" / "results") -> Constants:
        """Take them from the committed results."""
        sdk, collector = (_numbers(results / f"{name}.json") for name in ("sdk_span_cost", "collector_ingest"))
        spans_per_token = collector["spans"] / collector["tokens"]
        return cls(
            sdk_ns=sdk[f"realistic_batch_{BATCH}_ns_per_token"],
            engine_thread_ns=sdk[f"engine_thread_batch_{BATCH}_ns_per_token"],
            collector_us=collector["collector_us_per_span"] * spans_per_token,
            wire_bytes=collector["bytes_per_span_on_the_wire"] * spans_per_token,
            rest_bytes=collector["bytes_per_token_at_rest"],
            spans_per_token=spans_per_token,
        )


def tables(constants: Constants) -> dict[str, str]:
    """The page's generated parts by name, as Markdown."""
    parts = {"constants": _table(("per token", "value"), _constants(constants)), "rates": _rates(constants)}
    return parts | {"several": _several(SEVERAL)}


def fill(page: str, parts: Mapping[str, str]) -> str:
    """Replace the text between `<!-- NAME -->` and `<!-- /NAME -->`. Raises ValueError when a mark is missing."""
    for name, text in parts.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        before, _, rest = page.partition(begin)
        _, mark, after = rest.partition(end)
        if not mark:
            msg = f"the page has no {begin.strip()} … {end}"
            raise ValueError(msg)
        page = f"{before}{begin}{text}{end}{after}"
    return page


def main(write: Annotated[bool, typer.Option("--write", help="Put the tables into docs/storage.md.")] = False) -> None:
    """Print the tables."""
    parts = tables(Constants.read())
    for name, text in parts.items():
        print(f"{name}\n\n{text}")
    if write:
        PAGE.write_text(fill(PAGE.read_text(), parts))


def _numbers(file: Path) -> dict[str, float]:
    report = json.loads(file.read_text())
    if report["quick"]:
        msg = f"{file} was made with --quick: its numbers are too rough to plan with"
        raise ValueError(msg)
    numbers: dict[str, float] = report["numbers"]
    return numbers


def _constants(c: Constants) -> Iterator[tuple[str, str]]:
    yield "CPU of the SDK, all threads", f"{c.sdk_ns / 1000:.2f} µs"
    yield "of it on the engine's thread", f"{c.engine_thread_ns / 1000:.2f} µs"
    yield "CPU of the collector with its embedded store", f"{c.collector_us:.2f} µs"
    yield "bytes on the wire, not compressed", f"{c.wire_bytes:.0f} B"
    yield "bytes at rest in `tokens`", f"{c.rest_bytes:.2f} B"
    text = "tokens/s for each core of its host, at which a collector with its embedded store needs half of them"
    yield text, _round(1e6 / c.collector_us / HEADROOM * EMBEDDED_SHARE)


def _rates(c: Constants) -> str:
    head = ("tokens/s", "SDK cores", "collector cores", "network", "disk per day", f"disk for {RETENTION_DAYS} days")
    rows = (
        (
            f"{rate:,}",
            _cores(rate * c.sdk_ns / 1e9),
            _cores(rate * c.collector_us / 1e6),
            f"{_round(rate * c.wire_bytes / 1e6)} MB/s",
            f"{_round(rate * c.rest_bytes * DAY_S / 1e9)} GB",
            f"{_round(rate * c.rest_bytes * DAY_S * RETENTION_DAYS / 1e9)} GB",
        )
        for rate in RATES
    )
    return _table(head, rows)


def _several(file: Path) -> str:
    """CPU for each token of one to four collectors on one server, beside the embedded store."""
    if not file.exists():
        return "Not measured yet on an idle machine.\n"
    numbers = _numbers(file)
    arrangements = {"one, with its embedded store": "embedded"}
    arrangements |= {f"{count} on one server": f"server_{count}" for count in (1, 2, 4)}
    rows = (
        (
            text,
            f"{numbers[f'{name}_collectors_us_per_token']:.2f} µs",
            "" if name == "embedded" else f"{numbers[f'{name}_store_us_per_token']:.2f} µs",
            f"{_round(numbers[f'{name}_peak_mb'])} MB",
        )
        for text, name in arrangements.items()
    )
    return _table(("collectors", "CPU of the collectors per token", "CPU of the server", "memory of a collector"), rows)


def _cores(busy: float) -> str:
    """Cores to plan: `HEADROOM` times the busy ones, to a tenth, never 0."""
    return f"{math.ceil(busy * HEADROOM * 10) / 10:.1f}"


def _round(value: float) -> str:
    """Two significant digits."""
    digits = max(0, 1 - math.floor(math.log10(value)))
    return f"{round(value, 1 - math.floor(math.log10(value))):,.{digits}f}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in (head, ["---"] + ["---:"] * (len(head) - 1), *rows)]
    return "".join(f"{line}\n" for line in lines)


if __name__ == "__main__":
    typer.run(main)
