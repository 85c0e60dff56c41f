"""The header of all pages: SLO, time range, filters, refresh. All of it is in the URL."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, tzinfo
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import streamlit as st
from streamlit.errors import StreamlitAPIException

from dashboard import address, times
from dashboard.api import ask, fetch_seldom
from tokentrail.shared import query
from tokentrail.shared.connection import OTHER_FORM
from tokentrail.shared.formatting import count, instant, plain
from tokentrail.shared.parameters import FILTERS as DIMENSIONS
from tokentrail.shared.parameters import NOT

RANGES = {"5m": 300, "15m": 900, "1h": 3600, "6h": 21600, "24h": 86400, "7d": 604800, "30d": 2592000}
DEFAULT_RANGE = "15m"
CUSTOM = "custom"
LABELS: tuple[str, ...] = tuple(DIMENSIONS)
FILTERS = (*LABELS, *(f"{NOT}{label}" for label in LABELS))
BUCKETS = 90
_CHOSEN = "filters"

Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class View:
    """A selection of traffic: a time range, labels, and the SLO to judge by."""

    start: str
    end: str
    labels: Pairs
    """Filters as the API takes them: `("model", "llama")`, or `("not.model", "llama")` for those that have another."""
    slo: str | None
    every_s: float | None
    """Seconds between refreshes; None when the range does not end now, or the user looks at a selection or stopped."""
    zone: tzinfo
    """The time zone of the reader, or UTC."""

    @property
    def params(self) -> Pairs:
        """The API parameters that select this traffic."""
        return (("start", self.start), ("end", self.end), *self.labels)

    @property
    def chosen(self) -> dict[str, list[str]]:
        """The chosen values of each label that has some."""
        kept = [(label, value) for label, value in self.labels if label in LABELS]
        return {label: [value for name, value in kept if name == label] for label, _ in kept}

    def at(self, now: datetime) -> View:
        """This selection with absolute times, so that all questions of one drawing are about one moment."""
        start, end = times.span(self.start, self.end, now, self.zone)
        return replace(self, start=start, end=end)


def refresh_s(chosen: str) -> float:
    """Seconds between two refreshes of a range: a bucket of its charts, but not more than a minute."""
    return min(60.0, max(5.0, RANGES.get(chosen, 2700) / BUCKETS))


def readers_zone() -> tzinfo:
    """The time zone of the reader's browser; UTC when it does not say one that is known here."""
    try:
        return ZoneInfo(st.context.timezone or "UTC")
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return UTC


def shown_zone() -> tzinfo:
    """The time zone in which pages show times."""
    return UTC if st.session_state.get("utc", address.get("utc") == "true") else readers_zone()


def selected() -> View:
    """The selection of this run's header."""
    view: View = st.session_state["view"]
    return view


def header(page: str) -> View:
    """Draw the header of `page` (its path) into the row that is open.

    Returns the selection; the pages read it with `selected()`.
    """
    labels = _kept(page)
    if brushed := st.session_state.pop("next range", None):
        set_range(*brushed)
    slos, is_there = offered_slos()
    slo = st.selectbox(
        "SLO",
        slos,
        index=None,
        accept_new_options=True,  # a link's SLO stays in the URL while the collector is away
        placeholder="all SLOs",
        key="slo",
        bind="query-params",
        label_visibility="collapsed",
        width=140,
    )
    chosen = st.selectbox(
        "Time range",
        [*RANGES, CUSTOM],
        index=list(RANGES).index(DEFAULT_RANGE),
        key="range",
        bind="query-params",
        label_visibility="collapsed",
        width=110,
    )
    start, end = (f"-{chosen}", "now") if chosen in RANGES else _custom()
    with st.container(horizontal=True, gap=None, width="content", key="moves"):
        for key, icon, help_text, by in _MOVES:
            st.button("", icon=icon, key=key, help=help_text, type="tertiary", on_click=_move, args=(start, end, by))
        _picker(start, end)
    _offer(offered_filters(start, end, is_there=is_there))
    for number, (name, value) in enumerate(labels):
        st.button(
            plain(f"{name.removeprefix(NOT)}{' ≠' if name.startswith(NOT) else ':'} {value or '(none)'}"),
            icon=":material/close:",
            icon_position="right",
            key=f"chip-{number}",
            help="Remove this filter",
            on_click=drop,
            args=(name, value),
        )
    live = end == "now"
    held = address.held()
    refreshes = live and st.toggle("Refresh", value=True, key="refresh", bind="query-params", width="content")
    if live and refreshes and held is not None:
        st.caption("paused while you look", width="content")
        st.button("resume", type="tertiary", key="resume", on_click=address.let_go)
    st.toggle("UTC", key="utc", bind="query-params", width="content")
    every_s = refresh_s(chosen) if refreshes and held is None else None
    view = View(start, end, labels, slo, every_s, shown_zone())
    return view if held is None else view.at(held)


_MOVES = (
    ("back", ":material/chevron_left:", "Earlier ([)", (-1.0, -1.0)),
    ("forward", ":material/chevron_right:", "Later (])", (1.0, 1.0)),
    ("out", ":material/zoom_out:", "Zoom out (z)", (-0.5, 0.5)),
)
"""Key, icon, help, and by how many of its lengths the range's begin and end move."""


def _move(start: str, end: str, by: tuple[float, float]) -> None:
    """Move the bounds of the range by so many of its lengths, but not into the future."""
    now = address.moment()
    try:
        begin, until = map(instant, times.span(start, end, now, shown_zone()))
    except ValueError:  # the API says what is wrong with it
        return
    length = until - begin
    begin, until = begin + by[0] * length, until + by[1] * length
    if until > now:
        begin, until = (begin if by[0] < 0 else now - length), now
    set_range(begin, until)


def set_range(begin: datetime, until: datetime) -> None:
    """Show the time from `begin` to `until`. For callbacks: before the header is drawn."""
    set_times(times.written(begin), times.written(until))


def set_times(start: str, end: str) -> None:
    """Show a range by its texts, as people type them. For callbacks: before the header is drawn."""
    if end == "now" and start.removeprefix("-") in RANGES:
        st.session_state["range"] = start.removeprefix("-")
        address.let_go()
        return
    st.session_state["range"] = CUSTOM
    bounds = {"start": start, "end": end}
    st.session_state.update(bounds)
    with suppress(StreamlitAPIException):  # boxes that are there write their values into the URL, and new ones do not
        address.put(**bounds)
    address.let_go()


def show_range(begin: datetime, until: datetime) -> None:
    """Show the time from `begin` to `until`: for what a reader has brushed in a page's body."""
    st.session_state["next range"] = begin, until
    st.rerun()


def around(at: datetime, view: View) -> tuple[datetime, datetime]:
    """A range as long as that of `view` that ends a little after a moment, and not in the future."""
    length = instant(view.end) - instant(view.start)
    until = min(at + length / 20, address.moment())
    return until - length, until


def _custom() -> tuple[str, str]:
    hint = "14:00, 2026-11-21 14:00 (on the clock of the page), 2026-11-21T10:00:00Z, or relative to now: -2h30m"
    start, end = (
        st.text_input(
            label, default, key=key, bind="query-params", help=hint, label_visibility="collapsed", width=190,
        )
        for label, default, key in (("From", "-2h", "start"), ("To", "now", "end"))
    )  # fmt: skip
    start, end = start.strip() or "-2h", end.strip() or "now"
    begin, until = times.span(start, end, address.moment(), shown_zone())
    return start if start.startswith("-") else begin, until if end[:1].isdigit() else end


def _picker(start: str, end: str) -> None:
    """A calendar and a clock for both bounds of the range, on the clock of the page."""
    now, zone = address.moment(), shown_zone()
    with st.popover("", icon=":material/calendar_month:", type="tertiary", help="Choose times", key="calendar"):
        try:
            bounds = [instant(text).astimezone(zone) for text in times.span(start, end, now, zone)]
        except ValueError:  # the API says what is wrong with it
            return
        keys = [f"pick {label} {start} {end}" for label in ("From", "To")]  # another range has other boxes
        for key, at in zip(keys, bounds, strict=True):
            st.session_state.setdefault(key, at.replace(tzinfo=None, second=0, microsecond=0))
            st.datetime_input(key.split()[1], key=key, step=60)
        st.button("Show", key="picked", on_click=_picked, args=(keys, zone))


def _picked(keys: Sequence[str], zone: tzinfo) -> None:
    begin, until = (st.session_state[key].replace(tzinfo=zone) for key in keys)
    if begin < until:
        set_range(begin, until)


def offered_slos() -> tuple[list[str], bool]:
    """The SLOs to offer, and whether the collector answers as it should. If it does not, the page says why."""
    told = fetch_seldom(ask("slos"))
    try:
        return [slo["name"] for slo in told.get("slos", [])], bool(told)
    except OTHER_FORM:
        return [], False


def offers(labels: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, tuple[str, str]]:
    """Texts of filters to offer, the commonest values of each label first: `model: llama-70b (1 204)`."""
    return {
        f"{label}: {one['value']} ({count(one['requests'])})": (label, one["value"])
        for label in (*LABELS, *filter(lambda label: label not in LABELS and query.is_filter(label), labels))
        for one in labels.get(label, [])
        if one["value"]
    }


def offered_filters(start: str, end: str, *, is_there: bool) -> dict[str, tuple[str, str]]:
    """The filters to offer for a range, by their texts; none unless the collector `is_there`: one wait is enough."""
    try:
        return offers(fetch_seldom(ask("labels", start=start, end=end)).get("labels", {})) if is_there else {}
    except OTHER_FORM:
        return {}


def _offer(known: Mapping[str, tuple[str, str]]) -> None:
    """The box that offers filters: the values that requests of the range have. Others can be typed in."""
    st.selectbox(
        "Filter",
        list(known),
        index=None,
        key="add",
        placeholder="+ filter",
        accept_new_options=True,
        label_visibility="collapsed",
        width=150,
        on_change=_added,
        args=(known,),
        help="Choose a value, or type one: `tenant:acme`, `-model:llama`",
    )


def _added(known: Mapping[str, tuple[str, str]]) -> None:
    text = st.session_state["add"]
    st.session_state["add"] = None
    if not text:
        return
    if text in known:
        add(*known[text])
        return
    try:
        chosen = query.parse(text, ())
    except query.WrongWord as error:
        st.toast(plain(str(error)))
        return
    for name, values in chosen.items():
        for value in values:
            add(name, value)


def add(name: str, value: str) -> None:
    """Add a filter, and take out its opposite: `add("not.model", "llama")`."""
    opposite = name.removeprefix(NOT) if name.startswith(NOT) else f"{NOT}{name}"
    kept = [pair for pair in _in_url() if pair not in ((name, value), (opposite, value))]
    write([*kept, (name, value)])


def drop(name: str, value: str) -> None:
    """Remove a filter."""
    write([pair for pair in _in_url() if pair != (name, value)])


def _in_url() -> list[tuple[str, str]]:
    return [(name, value) for name in _names(st.query_params) for value in st.query_params.get_all(name)]


def of_request(trace_id: str, span_id: str) -> list[tuple[str, str]]:
    """Parameters of the page of a request, with the filters: written later, they would be a step of the way back."""
    return [("trace_id", trace_id), ("span_id", span_id), *_in_url()]


def _names(given: Iterable[str]) -> list[str]:
    return list(dict.fromkeys([*FILTERS, *(name for name in given if query.is_filter(name.removeprefix(NOT)))]))


def write(pairs: Sequence[tuple[str, str]]) -> None:
    """Have these filters and no others."""
    for name in _names([*st.query_params, *(name for name, _ in pairs)]):
        values = [value for key, value in pairs if key == name]
        if values != st.query_params.get_all(name):
            st.query_params[name] = values
    st.session_state[_CHOSEN] = tuple(pairs)


def _kept(page: str) -> Pairs:
    """The filters of the URL. Another page's URL begins without them, so they come from the page before."""
    before, st.session_state["page"] = st.session_state.get("page", page), page
    chosen = _in_url()
    if before != page and not chosen:
        write(st.session_state.get(_CHOSEN, ()))
        chosen = _in_url()
    st.session_state[_CHOSEN] = tuple(chosen)
    return tuple(chosen)
