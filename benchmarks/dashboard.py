"""The CPU of the dashboard's pages over a day of 13,000 requests: of the browser, of Streamlit and of the collector.

`navigation`: from the first request of a page until it stands; the least of several visits, in a tab that has loaded
Streamlit's scripts before. `open`: the share of a core that a tab takes that is open on Now of 15 minutes, without the
processes' idle share; the browser is not in it. The peer is an empty Streamlit page that refreshes itself every ten
seconds: the floor of any Streamlit page. A busy machine refreshes a page more seldom, so this takes three minutes on an
idle machine and more on a busy one.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import httpx
import psutil
import typer
from playwright.sync_api import Browser, Page

from benchmarks.report import JsonPath, Quick, publish
from dashboard.filters import DEFAULT_RANGE, refresh_s
from tests.dashboard.browser import browsing, finished, settled, streamlit
from tests.support.day import day_collector

PAGES: Final = ("", "explore", "tail", "engines")
SMALL: Final = 0.2
"""The share of the day's requests with `--quick`."""
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
    """Measure the pages of a day, an open tab, then the empty page."""
    every_s = refresh_s(DEFAULT_RANGE)
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name, browsing() as browser:
        folder = Path(name)
        empty = folder / "empty.py"
        empty.write_text(EMPTY_PAGE.format(every_s=every_s))
        with day_collector(folder / "data", scale=SMALL if quick else 1.0) as (collector, _):
            api, process = collector.urls["api"], psutil.Process(collector.process.pid)
            with streamlit(api, folder) as url:
                servers = {"collector": process, "streamlit": _listener(url)}
                for path in PAGES:
                    visit = f"{url}/{path}?range=24h&refresh=false"
                    for of, spent in _visits(browser, visit, settled, servers).items():
                        figures[f"{path or 'now'}_24h_{of}_cpu_s"] = spent
                figures |= {f"now_{of}": value for of, value in _open(browser, url, settled, servers).items()}
        with streamlit(api, folder, app=empty) as url:
            servers = {"streamlit": _listener(url)}
            for of, spent in _visits(browser, url, _empty, servers).items():
                figures[f"empty_{of}_cpu_s"] = spent
            figures |= {f"empty_{of}": value for of, value in _open(browser, url, _empty, servers).items()}
    publish("dashboard", figures, packages=("streamlit", "tokentrail"), quick=quick, path=json)


def _empty(page: Page) -> None:
    page.get_by_text("nothing at").wait_for()


@contextmanager
def _tab(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1440, "height": 1200})
    context.set_default_timeout(PATIENCE_MS)
    yield context.new_page()
    context.close()


def _visits(
    browser: Browser, url: str, ready: Callable[[Page], None], servers: Mapping[str, psutil.Process]
) -> dict[str, float]:
    """CPU seconds of a visit, by who spent them; the least of several. The first visit only loads and imports."""
    spent: list[dict[str, float]] = []
    with _tab(browser) as page:
        for _ in range(1 + VISITS):
            page.goto("about:blank")
            time.sleep(3)  # the last visit's session ends
            before = _used_by(servers)
            page.goto(url)
            ready(page)
            spent.append({of: used - before[of] for of, used in _used_by(servers).items()})
    return {of: min(one[of] for one in spent[1:]) for of in spent[0]}


def _used_by(servers: Mapping[str, psutil.Process]) -> dict[str, float]:
    """CPU seconds so far of each server, and of the browser with its renderers."""
    return {of: _used([process]) for of, process in servers.items()} | {"browser": _used(_browser())}


def _browser() -> list[psutil.Process]:
    """The processes of the browser that this one has started."""
    return [one for one in psutil.Process().children(recursive=True) if "chrom" in one.name()]


def _open(
    browser: Browser, url: str, ready: Callable[[Page], None], servers: Mapping[str, psutil.Process]
) -> dict[str, float]:
    """The share of a core that the servers spend on an open tab."""
    processes = [*servers.values()]
    refreshes = []
    with _tab(browser) as page:
        page.goto(url)
        ready(page)
        _refreshed(page)
        for _ in range(REFRESHES):
            began, before = time.monotonic(), _used(processes)
            _refreshed(page)
            refreshes.append((_used(processes) - before, time.monotonic() - began))
    time.sleep(3)
    began, before = time.monotonic(), _used(processes)
    time.sleep(IDLE_S)
    idle = (_used(processes) - before) / (time.monotonic() - began)
    spent, every_s = min(refreshes)
    return {
        "refresh_cpu_s": spent - idle * every_s,
        "refresh_every_s": every_s,
        "open_share_of_a_core": spent / every_s - idle,
        "idle_share_of_a_core": idle,
    }


def _refreshed(page: Page) -> None:
    """Wait until the page has refreshed itself."""
    page.wait_for_function(f"before => {CAPTION} !== before", arg=page.evaluate(CAPTION))
    finished(page)


def _listener(url: str) -> psutil.Process:
    """The process that listens there."""
    port = httpx.URL(url).port
    listening = (c for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN)
    return psutil.Process(next(c.pid for c in listening if c.pid and tuple(c.laddr)[1:] == (port,)))


def _used(processes: list[psutil.Process]) -> float:
    return sum(times.user + times.system for times in (process.cpu_times() for process in processes))


if __name__ == "__main__":
    typer.run(main)
