"""The sidebar: time range, SLO and labels, which select the traffic on all pages and are kept in the URL."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, tzinfo
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import streamlit as st

from dashboard.api import ask, fetch_seldom
from tokentrail.shared.connection import OTHER_FORM

RANGES = {"5m": 300, "15m": 900, "1h": 3600, "6h": 21600, "24h": 86400, "7d": 604800, "30d": 2592000}
DEFAULT_RANGE = "15m"
CUSTOM = "custom"
LABELS = ("model", "tenant", "variant", "engine", "slo_class", "vantage")
VANTAGES = {"server", "client"}
BUCKETS = 90


@dataclass(frozen=True)
class View:
    """A selection of traffic: a time range, labels, and the SLO to judge by."""

    start: str
    end: str
    labels: tuple[tuple[str, str], ...]
    slo: str | None
    every_s: float | None
    """Seconds between refreshes; None when the range does not end now, or the user has stopped them."""
    zone: tzinfo
    """The time zone of the reader, or UTC."""

    @property
    def params(self) -> tuple[tuple[str, str], ...]:
        """The API parameters that select this traffic."""
        return (("start", self.start), ("end", self.end), *self.labels)

    @property
    def chosen(self) -> dict[str, list[str]]:
        """The chosen values of each label that has some."""
        return {label: [value for name, value in self.labels if name == label] for label, _ in self.labels}


def refresh_s(chosen: str) -> float:
    """Seconds between two refreshes of a range: a bucket of its charts, but not more than a minute."""
    return min(60.0, max(5.0, RANGES.get(chosen, 2700) / BUCKETS))


def known_labels(engines: list[dict[str, Any]], slos: list[dict[str, Any]]) -> dict[str, list[str]]:
    """The values to offer for each label: those that engine processes sent and SLOs select. Others can be typed in."""
    known: dict[str, set[str]] = {label: set() for label in LABELS} | {"vantage": set(VANTAGES)}
    for engine in engines:
        known["engine"].add(engine["engine"])
        known["variant"].update(engine["variants"])
        known["model"].update(engine["models"])
    for slo in slos:
        for label, values in (slo.get("select") or {}).items():
            if label in known:
                known[label].update(values)
    return {label: sorted(values - {""}) for label, values in known.items()}


def offered() -> tuple[list[str], dict[str, list[str]]]:
    """The SLOs and the values of labels that the filters offer; none while the collector does not answer as it should.

    The page says what is wrong with the answers.
    """
    slos = fetch_seldom(ask("slos"))
    engines = fetch_seldom(ask("engines", start="-30d")) if slos else {}  # one wait for a collector that hangs
    try:
        found = slos.get("slos", [])
        return [slo["name"] for slo in found], known_labels(engines.get("engines", []), found)
    except OTHER_FORM:
        return [], known_labels([], [])


def sidebar() -> View:
    """Draw the filters. Returns the selection; the pages read it with `selected()`."""
    names, known = offered()
    with st.sidebar:
        chosen = st.selectbox(
            "Time range",
            [*RANGES, CUSTOM],
            index=list(RANGES).index(DEFAULT_RANGE),
            key="range",
            bind="query-params",
        )
        start, end = (f"-{RANGES[chosen]}s", "now") if chosen in RANGES else _custom()
        refreshes = end == "now" and st.toggle("Refresh", value=True, key="refresh", bind="query-params")
        slo = st.selectbox(
            "SLO",
            names,
            index=None,
            accept_new_options=True,  # a link's SLO stays in the URL while the collector is away
            placeholder="all requests",
            key="slo",
            bind="query-params",
            help="Charts show only the requests that this SLO selects, and judge goodput by it.",
        )
        in_utc = st.toggle("Times in UTC", key="utc", bind="query-params")
        labels = [(label, value) for label in LABELS for value in _label(label, known[label])]
    return View(
        start, end, tuple(labels), slo, refresh_s(chosen) if refreshes else None, UTC if in_utc else readers_zone()
    )


def readers_zone() -> tzinfo:
    """The time zone of the reader's browser; UTC when it does not say one that is known here."""
    try:
        return ZoneInfo(st.context.timezone or "UTC")
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return UTC


def selected() -> View:
    """The selection of this run's sidebar."""
    view: View = st.session_state["view"]
    return view


def _custom() -> tuple[str, str]:
    hint = "2026-11-21T10:00:00Z, unix seconds, or relative to now: -2h30m"
    start = st.text_input("From", "-2h", key="start", bind="query-params", help=hint)
    end = st.text_input("To", "now", key="end", bind="query-params", help=hint)
    return start.strip() or "-2h", end.strip() or "now"


def _label(label: str, known: list[str]) -> list[str]:
    return st.multiselect(
        "SLO class" if label == "slo_class" else label.capitalize(),
        known,
        key=label,
        accept_new_options=True,
        placeholder="all",
        bind="query-params",
    )
