"""The CPU of one open tab: a real collector with 225 requests of the last 15 minutes, Streamlit, and Chromium.

`navigation`: from the first request of the page until its numbers and charts stand. `open`: the page refreshes itself.
Both are CPU seconds of the dashboard's and the collector's processes, without the browser's. The peer is an
empty Streamlit page that refreshes itself at the same times: it is the floor of any Streamlit dashboard.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import httpx
import psutil
import typer
from playwright.sync_api import Page

from benchmarks.report import JsonPath, Quick, publish
from tests.dashboard.browser import APP, browsing, settled, streamlit
from tests.dashboard.feed import SECOND, Engine
from tests.support.collector import Collector
from tokentrail import now_ns

REQUESTS: Final = 225
SPACING_S: Final = 3.5
EMPTY_PAGE: Final = """
import streamlit as st
st.set_page_config(layout="wide")
st.fragment(lambda: st.caption("nothing"), run_every={every_s})()
"""


def main(quick: Quick = False, json: JsonPath = None) -> None:
    """Measure the page and the peer in turns."""
    seconds, rounds = (25.0, 1) if quick else (60.0, 3)
    taken: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder, browsing() as browser:
        empty = Path(folder) / "empty.py"
        with Collector(Path(folder) / "data") as collector:  # type: ignore[no-untyped-call]
            _feed(collector)
            every_s = _refresh_s()
            empty.write_text(EMPTY_PAGE.format(every_s=every_s))
            pages: dict[str, tuple[Path, Callable[[Page], None]]] = {
                "overview": (APP, settled),
                "empty": (empty, lambda page: page.get_by_text("nothing").wait_for()),
            }
            for _ in range(rounds):
                for name, (app, ready) in pages.items():
                    of_page = [] if name == "empty" else [collector.process.pid]
                    with streamlit(collector.urls["api"], Path(folder), app=app) as url:
                        processes = [psutil.Process(pid) for pid in (*of_page, _pid(url))]
                        context = browser.new_context(viewport={"width": 1440, "height": 1200})
                        page = context.new_page()
                        page.set_default_timeout(60_000)
                        page.goto(url)  # imports, compilation and caches of a first visit count as "first"
                        ready(page)
                        page.goto("about:blank")
                        time.sleep(3)
                        idle = _share(processes, 5)
                        with _cpu(processes) as spent:
                            page.goto(url)
                            ready(page)
                        taken.setdefault(f"{name}_navigation_cpu_s", []).append(spent[0])
                        taken.setdefault(f"{name}_open_share_of_a_core", []).append(_share(processes, seconds) - idle)
                        context.close()
    numbers: dict[str, float] = {name: min(values) for name, values in taken.items()}
    publish(
        "dashboard",
        {**numbers, "requests": REQUESTS, "refresh_every_s": every_s, "seconds": seconds, "rounds": rounds},
        packages=("streamlit", "plotly", "tokentrail"),
        quick=quick,
        path=json,
    )


def _refresh_s() -> float:
    from dashboard.filters import refresh_s

    return refresh_s("15m")


def _feed(collector: Collector) -> None:
    engine = Engine(collector.urls["otlp-http"])
    engine.at = now_ns() - int(REQUESTS * (SPACING_S + 0.6)) * SECOND
    for number in range(REQUESTS):
        engine.answer(f"req-{number}", tokens=10 + number % 9)
        engine.at += int(SPACING_S * SECOND)
    assert engine.trail.flush(30.0)
    deadline = time.monotonic() + 120
    while httpx.get(f"{collector.urls['api']}/api/v1/summary?start=-1h").json()["requests"]["total"] < REQUESTS:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    engine.trail.shutdown()


def _pid(url: str) -> int:
    """The process that listens there."""
    port = httpx.URL(url).port
    listening = (
        c for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN and tuple(c.laddr)[1:] == (port,)
    )
    return next(int(c.pid) for c in listening if c.pid)


@contextmanager
def _cpu(processes: list[psutil.Process]) -> Iterator[list[float]]:
    """The CPU seconds that the processes spend in the block; in the list after it."""
    before, spent = _used(processes), [0.0]
    yield spent
    spent[0] = _used(processes) - before


def _share(processes: list[psutil.Process], seconds: float) -> float:
    """The share of a core that the processes take for so long."""
    began = time.monotonic()
    with _cpu(processes) as spent:
        time.sleep(seconds)
    return spent[0] / (time.monotonic() - began)


def _used(processes: list[psutil.Process]) -> float:
    return sum(times.user + times.system for times in (process.cpu_times() for process in processes))


if __name__ == "__main__":
    typer.run(main)
