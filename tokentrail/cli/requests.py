"""`tokentrail requests` and `tokentrail tail`: request rows, one line each."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from httpx import HTTPError, HTTPStatusError, TransportError, codes
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tokentrail.cli.api import Api
from tokentrail.cli.output import cells, note, short
from tokentrail.shared.formatting import THRESHOLDS, UNDEFINED, clock, count, duration, one_line, tpot

POLL_S: Final = 1.0
_LATE_S: Final = 10.0
"""A row may be stored this long after its request ended, and is still shown. An SDK sends once a second, and a
collector stores a trickle every five seconds."""
_STYLES: Final = {"ok": "green", "error": "red", "cancelled": "yellow", "in_flight": "cyan"}
_HEADS: Final = (
    *("end (UTC)", "status", "verdict", "missed", "model", "variant", "tenant", "class", "engine", "vantage"),
    *("tokens", "TTFT", "TPOT", "gap", "E2E", "longest part", "trace"),
)
_LEAST: Final = {
    "status": 9, "model": 12, "tenant": 7, "class": 7, "trace": 8, "variant": 7, "engine": 6, "longest part": 12,
}  # fmt: skip
"""Characters that a cell is cut to at most: a trace is found by eight digits. Times and numbers are never cut."""
_LEFT_OUT: Final = (
    *("vantage", "engine", "variant", "verdict", "gap", "class", "tenant", "longest part", "model", "tokens", "missed"),
    *("E2E", "TPOT", "TTFT", "end (UTC)"),
)
"""Columns that a narrow terminal has no room for, in this order."""
_GAP: Final = 2
_PHASES: Final = ("queue", "cold_start", "prefill", "decode", "preempted", "kv_transfer", "stalled")
_OF_LATENCY: Final = {
    "ttft": ("queue", "cold_start", "prefill", "kv_transfer"),
    "tpot": ("decode", "preempted", "stalled"),
    "gap": ("decode", "preempted", "stalled"),
}
"""The phases that a latency is made of; of the others, all."""


def table(rows: Sequence[Mapping[str, Any]], width: int, sort: str = "end") -> Table:
    """One line for each request, in so many columns of a terminal. The longest part is one of the latency of `sort`."""
    cut = [cells(*_cells(row, sort)) for row in rows]
    columns = dict(zip(_HEADS, zip(*cut, strict=True), strict=True))
    columns["end (UTC)"] = tuple(Text(cell.plain.removesuffix(" UTC")) for cell in columns["end (UTC)"])
    full = {head: max(cell_len(head), *(cell.cell_len for cell in column)) for head, column in columns.items()}
    widths = _widths(full, width)
    lines = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="dim")
    for head, room in widths.items():
        # An ellipsis would be copied with the id.
        lines.add_column(head, width=room, no_wrap=True, overflow="crop" if head == "trace" else "ellipsis")
    for cells_of_row in zip(*(columns[head] for head in widths), strict=True):
        lines.add_row(*cells_of_row)
    return lines


def _widths(full: Mapping[str, int], room: int) -> dict[str, int]:
    """The width of each column that is shown, from the widths that they would have in full."""
    widths = {head: min(full[head], _LEAST.get(head, full[head])) for head in _HEADS}
    for head in _LEFT_OUT:
        if _together(widths) <= room:
            break
        del widths[head]
    for head in widths:
        widths[head] += min(full[head] - widths[head], max(0, room - _together(widths)))
    return widths


def _together(widths: Mapping[str, int]) -> int:
    return sum(widths.values()) + _GAP * (len(widths) - 1)


def line(row: Mapping[str, Any]) -> str:
    """One request as a line for a terminal that scrolls."""
    return "  ".join(cell.plain for cell in cells(*_cells(row)))


def _cells(row: Mapping[str, Any], sort: str = "end") -> list[str | Text]:
    status = row["status"] + (f" {short(row['error_type'])}" if row["error_type"] else "")
    return [
        clock(row["end"]),
        Text(one_line(status), style=_STYLES.get(row["status"], "")),
        Text(row["verdict"], style="red" if row["verdict"] == "bad" else ""),
        missed(row),
        *(short(row[key]) for key in ("model", "variant", "tenant", "slo_class", "engine", "vantage")),
        f"{count(row['input_tokens'])}→{count(row['output_tokens'])}",
        duration(row["ttft_s"]),
        tpot(row),
        duration(row["gap_s"]),
        duration(row["e2e_s"]),
        _longest_part(row, sort),
        row["trace_id"],
    ]


def missed(row: Mapping[str, Any]) -> str:
    """The thresholds that a request missed, and by how much at most: `TTFT by 400 ms`."""
    over: dict[str, float] = {}
    for verdict in row["verdicts"]:
        for miss in verdict["missed"]:
            over[miss["threshold"]] = max(miss["over_s"], over.get(miss["threshold"], 0.0))
    return ", ".join(f"{THRESHOLDS[name]} by {duration(s)}" for name, s in over.items()) or UNDEFINED


def _longest_part(row: Mapping[str, Any], sort: str) -> str:
    """The phase that took most of the latency by which the list is sorted, with its share of it.

    Of TTFT the time before the first token, of TPOT and of the longest gap the time after it, else of E2E. Undefined
    where that is not known.
    """
    first_s, whole_s = row["ttft_s"], row["e2e_s"]
    rest_s = None if None in (first_s, whole_s) else whole_s - first_s
    of_s = {"ttft": first_s, "tpot": rest_s, "gap": rest_s}.get(sort, whole_s)
    known = {name: row[f"{name}_s"] for name in _OF_LATENCY.get(sort, _PHASES) if row[f"{name}_s"]}
    if not known or not of_s:
        return UNDEFINED
    name = max(known, key=lambda phase: known[phase])
    return f"{name} {min(1.0, known[name] / of_s) * 100:.0f} %"


def follow(
    api: Api,
    filters: Mapping[str, Any],
    known: Iterable[tuple[str, str]],
    *,
    sleep: Callable[[float], None] = time.sleep,
    tell: Callable[[str], None] = note,
) -> Iterator[Mapping[str, Any]]:
    """Yield each request once, soon after it is stored, for ever. `known`: trace and span ids not to yield again.

    A collector that restarts or is busy is asked again, also about the time since its last answer. Raises other
    httpx.HTTPErrors.
    """
    answered = time.monotonic()
    shown = dict.fromkeys(known, answered)
    is_away = False
    while True:
        now = time.monotonic()
        try:
            ended = _ended(api, filters, now - answered)
        except HTTPError as error:
            if not passes(error):
                raise
            if not is_away:
                tell(f"the collector does not answer ({error}): it is asked until it does")
            is_away = True
            sleep(POLL_S)
            continue
        if is_away:
            tell("the collector answers again")
        answered, is_away = now, False
        new = [row for row in ended if (row["trace_id"], row["span_id"]) not in shown]
        yield from reversed(new)
        shown |= {(row["trace_id"], row["span_id"]): now for row in new}
        shown = {key: at for key, at in shown.items() if now - at < 2 * _LATE_S}
        sleep(POLL_S)


def _ended(api: Api, filters: Mapping[str, Any], since_s: float) -> list[dict[str, Any]]:
    """The requests that ended since then or in the last seconds before, newest first."""
    return api.requests(start=f"-{_LATE_S + since_s:.3f}s", **filters)


def passes(error: HTTPError) -> bool:
    """Whether a later question may be answered: the collector restarts, or has too much to do."""
    if isinstance(error, HTTPStatusError):
        return error.response.status_code == codes.TOO_MANY_REQUESTS or error.response.is_server_error
    return isinstance(error, TransportError)


def print_rows(console: Console, rows: Iterable[Mapping[str, Any]], *, as_json: bool) -> None:
    """Print requests as they come."""
    for row in rows:
        text = json.dumps(row) if as_json else line(row)
        console.print(text, soft_wrap=True, markup=False, highlight=False, style="" if as_json else _style(row))


def _style(row: Mapping[str, Any]) -> str:
    return "" if row["status"] == "ok" else _STYLES.get(row["status"], "")
