"""The CPU of one open tab: a real collector with 225 requests of the last 15 minutes, Streamlit, and Chromium.

`navigation`: from the first request of the page until its numbers and charts stand; the least of several visits.
`refresh`: the CPU from one refresh of the open page to the next, without the processes' idle share; `open` is that over
the time between the two. All count the dashboard's and the collector's processes, and not the browser's. The peer is an
empty Streamlit page that refreshes itself every ten seconds: the floor of any Streamlit page. A busy machine refreshes
the overview more seldom, so this takes two minutes on an idle machine and five on a busy one.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import httpx
import psutil
import typer
from playwright.sync_api import Browser, Page

from benchmarks.report import JsonPath, Quick, publish
from dashboard.filters import DEFAULT_RANGE, refresh_s
from tests.dashboard.browser import browsing, finished, settled, streamlit
from tests.dashboard.feed import SECOND, Engine
from tests.support.collector import Collector
from tokentrail import now_ns

REQUESTS: Final = 225
SPACING_S: Final = 3.5
VISITS: Final = 3
REFRESHES: Final = 2
IDLE_S: Final = 20.0
PATIENCE_MS: Final = 240_000
CAPTION: Final = "document.querySelector('[data-testid=stMain] [data-testid=stCaptionContainer]')?.innerText"
"""Text that changes with each refresh: the time that the page shows."""
EMPTY_PAGE: Final = """
import time
import streamlit as st
st.set_page_config(layout="wide")
st.fragment(lambda: st.caption(f"nothing at {{time.time()}}"), run_every={every_s})()
"""


def main(quick: Quick = False, json: JsonPath = None) -> None:
    """Measure the overview, then the empty page."""
    every_s = refresh_s(DEFAULT_RANGE)
    with tempfile.TemporaryDirectory() as name, browsing() as browser:
        folder = Path(name)
        empty = folder / "empty.py"
        empty.write_text(EMPTY_PAGE.format(every_s=every_s))
        with Collector(folder / "data") as collector:  # type: ignore[no-untyped-call]
            _feed(collector)
            api, process = collector.urls["api"], psutil.Process(collector.process.pid)
            with streamlit(api, folder) as url:
                overview = _measure(browser, url, settled, [process, _listener(url)])
        with streamlit(api, folder, app=empty) as url:
            floor = _measure(browser, url, lambda page: page.get_by_text("nothing at").wait_for(), [_listener(url)])
    publish(
        "dashboard",
        {
            **{f"overview_{name}": value for name, value in overview.items()},
            **{f"empty_{name}": value for name, value in floor.items()},
            "requests": REQUESTS,
        },
        packages=("streamlit", "plotly", "tokentrail"),
        quick=quick,
        path=json,
    )


def _measure(
    browser: Browser, url: str, ready: Callable[[Page], None], processes: list[psutil.Process]
) -> dict[str, float]:
    """CPU seconds of a visit and of a refresh, and the share of a core of an open tab. The first visit only imports."""
    context = browser.new_context(viewport={"width": 1440, "height": 1200})
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    visits, refreshes = [], []
    for _ in range(1 + VISITS):
        page.goto("about:blank")
        time.sleep(3)  # the last visit's session ends
        before = _used(processes)
        page.goto(url)
        ready(page)
        visits.append(_used(processes) - before)
    _refreshed(page)
    for _ in range(REFRESHES):
        began, before = time.monotonic(), _used(processes)
        _refreshed(page)
        refreshes.append((_used(processes) - before, time.monotonic() - began))
    page.goto("about:blank")
    time.sleep(3)
    began, before = time.monotonic(), _used(processes)
    time.sleep(IDLE_S)
    idle = (_used(processes) - before) / (time.monotonic() - began)
    context.close()
    spent, every_s = min(refreshes)
    return {
        "navigation_cpu_s": min(visits[1:]),
        "refresh_cpu_s": spent - idle * every_s,
        "refresh_every_s": every_s,
        "open_share_of_a_core": spent / every_s - idle,
        "idle_share_of_a_core": idle,
    }


def _refreshed(page: Page) -> None:
    """Wait until the page has refreshed itself."""
    page.wait_for_function(f"before => {CAPTION} !== before", arg=page.evaluate(CAPTION))
    finished(page)


def _feed(collector: Collector) -> None:
    engine = Engine(collector.urls["otlp-http"])
    engine.at = now_ns() - int(REQUESTS * (SPACING_S + 0.6)) * SECOND
    for number in range(REQUESTS):
        engine.answer(f"req-{number}", tokens=10 + number % 9)
        engine.at += int(SPACING_S * SECOND)
    assert engine.trail.flush(60.0)
    deadline = time.monotonic() + 240
    while httpx.get(f"{collector.urls['api']}/api/v1/summary?start=-1h").json()["requests"]["total"] < REQUESTS:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    engine.trail.shutdown()


def _listener(url: str) -> psutil.Process:
    """The process that listens there."""
    port = httpx.URL(url).port
    listening = (c for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN)
    return psutil.Process(next(c.pid for c in listening if c.pid and tuple(c.laddr)[1:] == (port,)))


def _used(processes: list[psutil.Process]) -> float:
    return sum(times.user + times.system for times in (process.cpu_times() for process in processes))


if __name__ == "__main__":
    typer.run(main)
