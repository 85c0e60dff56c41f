"""Components that the pages share: problems, empty states, metrics, refreshing bodies."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, tzinfo
from http import HTTPStatus
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from dashboard import address
from dashboard.api import Problem, api_url, ask, fetch
from dashboard.filters import View
from dashboard.transform import Json
from tokentrail.shared.connection import OTHER_FORM
from tokentrail.shared.formatting import age, cell, clock, count, data_until, plain, without_user

_log = logging.getLogger(__name__)
_last = {"took_s": 0.5}
_SHARE = 0.02
"""Refreshes take at most this share of the time. They cost up to 1.5 times as much CPU, since two processes work."""
_SENT_S = 0.5
"""By then the browser has all that was drawn. When another run begins, Streamlit drops the unsent elements."""
_INTERVALS_S = (2.0, 5.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 120.0)

STYLE = """
<style>
  [data-testid="stMetricLabel"] {opacity: .72}
  [data-testid="stMetricValue"] {font-variant-numeric: tabular-nums; font-size: clamp(1.1rem, 1.55vw, 2rem)}
  [data-testid="stMetricValue"] > div, [data-testid="stMetricLabel"] p {overflow: visible; white-space: normal}
  /* Where cards are narrower than their numbers, they stand below each other. */
  [data-testid="stColumn"] {min-width: min(100%, 17.25rem)}
  [data-testid="stColumn"] [data-testid="stColumn"] {min-width: 0}
  /* A row of eight numbers becomes two rows of four, and then four of two, before a word is cut. */
  .st-key-request-numbers {
    container-type: inline-size;
    [data-testid="stColumn"] {min-width: 0}
    @container (width < 62rem) {[data-testid="stColumn"] {min-width: calc(25% - 1rem)}}
    @container (width < 34rem) {[data-testid="stColumn"] {min-width: calc(50% - 1rem)}}
  }
  [data-stale="true"] {transition: opacity .5s ease-in 3s !important}  /* a refresh that is quick does not dim */
  /* Said after two seconds, and in no place of its own: a page that comes at once does not move. */
  :has(> [data-testid="stSpinner"]) {position: absolute}
  [data-testid="stSpinner"] {position: fixed; top: .9rem; left: 50%; width: auto; z-index: 999991}
  [data-testid="stSpinner"] {animation: tt-late 1ms 2s both}
  @keyframes tt-late {from {visibility: hidden}}
  :has(> [class*="st-key-stale-"]) ~ * {opacity: .55}
  .st-key-header {row-gap: .35rem}
  .st-key-header [class*="st-key-chip-"] button {border-radius: 1rem; min-height: 1.9rem; padding: .1rem .7rem}
  .st-key-moves button {min-height: 1.9rem; padding: 0 .15rem}
</style>
"""


ANSWERS = (Path(__file__).parents[1] / "answers.css").read_text(encoding="utf-8")
"""The looks of the HTML that pages make of answers: classes that begin with `tt-`."""


def title(name: str) -> None:
    """Name the browser's tab."""
    st.set_page_config(page_title=f"{name} · tokentrail")


def style() -> None:
    """Apply the styles that Streamlit's theme cannot express."""
    st.html(f"{STYLE}<style>{ANSWERS}</style>")


def problem(found: Problem) -> None:
    """Show a problem and its remedy in place of the missing content. Several parts of a page may have one."""
    st.error(f"**{plain(found.title)}**\n\n{plain(found.detail)}", icon=":material/cloud_off:")


def explained(draw: Callable[[], None]) -> None:
    """Draw; or say that the collector's answer has another form than the pages read, and leave the rest out."""
    try:
        draw()
    except OTHER_FORM as error:
        _log.exception("an answer of the collector cannot be drawn")
        problem(
            Problem(
                "The collector's answer cannot be drawn",
                f"It is of another form than this dashboard reads ({type(error).__name__}: {error}). Collector and "
                f"dashboard must be of the same version: {without_user(api_url())}/healthz tells the collector's, "
                "and pip show tokentrail the dashboard's. The dashboard's log has the traceback.",
            )
        )


def frame(name: str, heights: Sequence[int]) -> DeltaGenerator:
    """Grey blocks of the parts of a page, with their heights in pixels, until it has its first answer of that name.

    Empty the frame then; it takes no room any more.
    """
    place = st.empty()
    if f"last {name}" not in st.session_state:
        blocks = "".join(f'<div class="tt-frame" style="height:{height}px"></div>' for height in heights)
        place.html(f'<div role="status" aria-label="Loading">{blocks}</div>')
    return place


def last_known(name: str, found: Json | Problem, view: View) -> Json | None:
    """The answer; or, when the collector gives none, that of the last time, and a warning. None: there is neither.

    Answers to another selection than that of the page are not shown, and none to who may not read any more.
    """
    key, asked = f"last {name}", st.session_state.get("view", view)
    if not isinstance(found, Problem):
        st.session_state[key] = (asked, datetime.now(UTC), found)
        return found
    problem(found)
    if found.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        st.session_state.pop(key, None)
    of, at, before = st.session_state.get(key, (None, None, None))
    if of != asked:
        return None
    with st.container(key=f"stale-{name.replace(' ', '-')}"):  # what stands behind it is dimmed
        st.warning(
            f"These are the numbers of {clock(at.isoformat(), view.zone)}, the last that the collector gave.",
            icon=":material/history:",
        )
    known: Json = before
    return known


def span(window: Json, zone: tzinfo) -> None:
    """Say which time an answer is about, and up to when it is complete."""
    told = [text for text in (data_until(window, zone), age(window, address.moment())) if text]
    st.caption(" · ".join([f"{clock(window['start'], zone)} – {clock(window['end'], zone)}", *told]))


def no_data() -> None:
    """Say that the collector has no data, how to send some, and what has arrived so far."""
    told = fetch(ask("collector"))
    http, grpc = (_endpoint(told, *one) for one in (("otlp-http", 4318), ("otlp-grpc", 4317)))
    with st.container(key="no-data", border=True):
        st.subheader("No data yet")
        st.markdown(
            f"The collector at {plain(without_user(api_url()))} answers, but no engine has sent anything. "
            "Let one send:\n\n"
            "- vLLM, token by token: `pip install tokentrail` in its environment, and start it with "
            f"`OTEL_EXPORTER_OTLP_ENDPOINT={http}`\n"
            "- an engine with tokentrail's SDK, or any instrumentation with OpenTelemetry's GenAI conventions: "
            f"`OTEL_EXPORTER_OTLP_ENDPOINT={http}` (HTTP) or `{grpc}` (gRPC)\n"
            "- no engine yet: `tokentrail demo` runs one and sends it requests"
        )
        if not isinstance(told, Problem):
            st.markdown(plain(arrived(told)))


def _endpoint(told: Json | Problem, name: str, port: int) -> str:
    """The address to which engines send: the collector's listener, or its usual port if the key may not read it.

    A listener on all addresses is reached under the name under which the dashboard reaches the API.
    """
    host = urlsplit(api_url()).hostname or "COLLECTOR"
    listener = None if isinstance(told, Problem) else told["listeners"].get(name)
    if listener is None:
        return f"http://{host}:{port}"
    parts = urlsplit(listener if "//" in listener else f"http://{listener}")
    name = str(parts.hostname)
    with suppress(ValueError):  # it is a name
        name = host if ip_address(name).is_unspecified else name
    return f"{parts.scheme}://{f'[{name}]' if ':' in name else name}:{parts.port}"


def arrived(told: Json) -> str:
    """What has come in at the collector: `Arrived so far: 3 payloads, refused 1 (unreadable: 1); 12 spans, …`"""
    refused, left_out = _by_reason(told["payloads_refused"]), _by_reason(told["spans_left_out"])
    received, spans = (count(told[name]) for name in ("payloads_received", "spans_received"))
    return f"Arrived so far: {received} payloads, refused {refused}; {spans} spans, left out {left_out}."


def _by_reason(counts: Mapping[str, int]) -> str:
    """`2 (unreadable: 2)`."""
    reasons = ", ".join(f"{reason}: {count(n)}" for reason, n in counts.items() if n)
    return count(sum(counts.values())) + (f" ({reasons})" if reasons else "")


def refreshed(body: Callable[[View], None], view: View, every_s: float | None = None) -> None:
    """Draw `body` with the selection at this moment, and redraw it at the next ones without the rest of the page.

    `every_s` is in place of the selection's own interval in seconds, 0 for none. Without one, it is drawn once.

    An open tab shall cost 3 % of a core at most, so the last redraw's duration sets how often there is one.

        every 10 s, took 0.2 s    redraw in 10 s
        every 10 s, took 0.4 s    redraw in 20 s

    The interval is chosen when the whole page is drawn, from the last redraw in this process, of any tab. A redraw that
    takes more than a third of it draws the whole page once more, with a longer interval.
    """
    every_s = (view.every_s if every_s is None else every_s) or None
    interval_s = None if every_s is None else _interval(every_s, _last["took_s"])

    def timed() -> None:
        start = time.monotonic()
        now = view.at(address.moment())
        explained(lambda: body(now))
        _last["took_s"] = time.monotonic() - start
        if interval_s is not None and _crowds(interval_s, _last["took_s"]):
            time.sleep(_SENT_S)
            st.rerun()

    st.fragment(timed, run_every=interval_s)()


def _interval(every_s: float, took_s: float) -> float:
    return next((s for s in _INTERVALS_S if s >= max(every_s, took_s / _SHARE)), _INTERVALS_S[-1])


def _crowds(interval_s: float, took_s: float) -> bool:
    return took_s > interval_s / 3 and interval_s < _INTERVALS_S[-1]


def table(rows: Sequence[Json], **options: Any) -> Any:
    """A table. Its texts may be of others, and are downloaded as CSV, too. Returns what is selected in it."""
    shown = [{name: cell(value) if isinstance(value, str) else value for name, value in row.items()} for row in rows]
    return st.dataframe(shown, hide_index=True, **options)
