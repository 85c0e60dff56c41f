"""Links of the collector's answers as addresses of pages, and times and texts as a page writes them in HTML."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Literal

import streamlit as st

from dashboard import address, filters
from dashboard.filters import CUSTOM, View
from dashboard.transform import Json
from tokentrail.shared import query
from tokentrail.shared.durations import parse_duration
from tokentrail.shared.formatting import instant, one_line
from tokentrail.shared.parameters import NOT

_LONGEST = 160


def text(value: str | None, longest: int = _LONGEST) -> str:
    """Text of others in HTML: on one line, short, without markup."""
    flat = one_line(value or "")
    return html.escape(flat if len(flat) <= longest else f"{flat[: longest - 1]}…")


def anchor(title: str, href: str, *, outside: bool = False) -> str:
    """A link. One to another site opens in a tab of its own."""
    target = 'target="_blank" rel="noreferrer"' if outside else 'target="_self"'
    return f'<a href="{html.escape(href)}" {target}>{text(title)}</a>'


Page = Literal["now", "explore", "tail", "engines", "compare", "request"]
_BOUNDS = {"at_least": "lo", "at_most": "hi"}
BOUNDED = ("metric", *_BOUNDS)
"""A part of the map: which latency, and its bounds."""
OF_EXPLORE = (
    *("verdict", "status", "sort", "min_input_tokens", "max_input_tokens"),
    *("cause", "cause_start", "cause_end", "process_tenant", "request_id"),
)
"""What Explore alone reads, by names that the API and the URL have alike."""
LINE = "q"
"""The parameter of a link that has a line of words (tokentrail/shared/query.py) in place of all others."""
READS: Mapping[Page, Sequence[str]] = {
    "now": ("slo",),
    "explore": ("slo", *BOUNDED, *OF_EXPLORE),
    "tail": ("slo",),
    "engines": ("slo", "process_tenant", "at", "sel"),
    "compare": ("slo", "at", "span"),
    "request": ("slo", "trace_id", "span_id"),
}
"""What each page reads from its address beside its times and filters, by the names that the API has for it."""


class LeadsAstray(ValueError):
    """A page does not read a parameter of a link, so it would show other requests than the link says."""


def to(page: Page, view: View, params: Mapping[str, object] | None = None, /, *, filtered: bool = True) -> str:
    """The address of a page about the requests that parameters of the API select: the only way to write one.

    It has absolute times, those of `view` unless there are others, the clock of the page, and the page's own filters,
    unless it is not to be `filtered`, but for those that `params` has. Raises LeadsAstray.
    """
    given = {name: value for name, value in (params or {}).items() if value is not None}
    known = {name for name in given if query.is_filter(name.removeprefix(NOT))}
    if unread := {*given} - {*known, *READS[page], "start", "end"}:
        raise LeadsAstray(f"the page {page} reads no {', '.join(sorted(unread))}")
    pairs = [(name, value) for name, value in view.labels if filtered and name not in given]
    utc = {"utc": "true"} if address.get("utc") == "true" else {}
    if page == "compare" and "at" in given:  # a moment has times of its own
        return address.link(page, [*given.items(), *utc.items(), *pairs])
    fixed = view.at(address.moment())
    times = {"range": CUSTOM, "start": given.pop("start", fixed.start), "end": given.pop("end", fixed.end)}
    given |= latencies(given)
    if page == "engines" and "instance" in given:
        given["sel"] = process_id({name: given.pop(name, "") for name in ("service", "instance", "process_tenant")})
    return address.link(page, [*times.items(), *given.items(), *utc.items(), *pairs])


def here(page: Page, **changed: object) -> str:
    """The address of the page that is shown, with other parameters. One that is None is left out."""
    kept = [(name, value) for name in st.query_params if name not in changed for value in st.query_params.get_all(name)]
    return address.link(page, kept, **changed)


def latencies(given: dict[str, object]) -> dict[str, object]:
    """The bounds of a latency as the map has them, `{"lo": "0.451"}`. They are taken out of the API's parameters."""
    known = {_BOUNDS[name]: given.pop(name) for name in _BOUNDS if name in given}
    seconds = {name: Decimal(parse_duration(str(bound))).scaleb(-9) for name, bound in known.items()}
    return {name: f"{bound.normalize():f}" for name, bound in seconds.items()}


def takes(page: str) -> Sequence[str]:
    """The parameters beside filters that a line of a page, by its path, can have."""
    return ("start", "end", *READS["explore" if page == "explore" else "now"])


def in_url(params: Mapping[str, object]) -> list[tuple[str, object]]:
    """The parameters of a line as the URL has them. Times stay as they are: on the clock of the page."""
    given = dict(params)
    given |= latencies(given)
    if "start" in given or "end" in given:
        start, end = str(given.pop("start", "-15m")), str(given.pop("end", "now"))
        named = start.removeprefix("-") if end == "now" else ""
        given |= {"range": named} if named in filters.RANGES else {"range": CUSTOM, "start": start, "end": end}
    return [(name, one) for name, value in given.items() for one in (value if isinstance(value, list) else [value])]


def of_answer(link: Json, view: View) -> str:
    """A link of `/verdict`: to a page, or to a runbook. Empty where it would lead astray."""
    if link["url"]:
        return anchor(link["title"], link["url"], outside=True) if link["url"].startswith("https://") else ""
    try:
        return anchor(link["title"], to(link["page"], view, link["params"]))
    except (LeadsAstray, KeyError):  # of a newer collector
        return ""


def process_id(process: Json) -> str:
    """A process as the URL names it: `service/instance`, and the tenant to whom it belongs behind them."""
    names = [process["service"], process["instance"], process.get("process_tenant") or ""]
    return "/".join(name.replace("%", "%25").replace("/", "%2F") for name in names if name or name is names[0])


def from_ns(ns: int) -> datetime:
    """A time of the API in unix nanoseconds."""
    return datetime.fromtimestamp(ns / 1e9, UTC)


def hour(at: datetime, view: View) -> str:
    """`13:02`, with the day if it is another one than that of the range's end: `Nov 25 13:02`."""
    local, end = at.astimezone(view.zone), instant(view.end).astimezone(view.zone)
    return f"{local:%H:%M}" if local.date() == end.date() else f"{local:%b} {local.day} {local:%H:%M}"
