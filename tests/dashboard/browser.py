"""Runs Streamlit as a process and Chromium against it, for the page tests and for screenshots."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tokentrail.cli.processes import Child, free_port

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

APP = Path(__file__).parents[2] / "dashboard" / "app.py"
PAGES = APP.with_name("pages.py")
"""The script of `APP`, which AppTest runs without a server."""
CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP *.test 127.0.0.1",  # names that were rebound to this machine
    "--js-flags=--no-opt --no-maglev",  # a page is gone before optimised code pays
]
REFRESH_OFTEN = "from dashboard import components; components._SHARE = 0.25; from streamlit.web.cli import main; main()"
"""Streamlit with a dashboard that may spend a quarter of its time on refreshes: tests wait for one."""


@contextmanager
def streamlit(
    api_url: str, folder: Path, *, app: Path = APP, often: bool = False, port: int = 0, **settings: str
) -> Iterator[str]:
    """Run the dashboard on a free port and yield its URL. Then its log must name none of our files: no traceback."""
    port = port or free_port(0)
    program = ["-c", REFRESH_OFTEN] if often else ["-m", "streamlit"]
    command = [sys.executable, *program, "run", str(app)]
    environment = {"TOKENTRAIL_API_URL": api_url, **settings}
    child = Child("dashboard", [*command, "--server.port", str(port)], folder / "streamlit.log", environment)
    try:
        child.wait_ready(f"http://127.0.0.1:{port}/_stcore/health", timeout_s=300)
        yield f"http://127.0.0.1:{port}"
    finally:
        child.stop()
    log = child.log.read_text()
    assert not re.search(r"dashboard/[\w/]+\.py", log), log


def chromium() -> str | None:
    """Path of the browser, or None when it is not installed."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


@contextmanager
def browsing() -> Iterator[Browser]:
    """A headless Chromium."""
    from playwright.sync_api import sync_playwright  # late: the conftest imports this file into each worker

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=CHROMIUM_FLAGS)
        yield browser
        browser.close()


def finished(page: Page) -> None:
    """Wait until Streamlit has run the page's script to its end, and the browser has drawn the result.

    A table writes its description for screen readers 200 ms after it was drawn; a longer timer of the page ends later.
    """
    page.wait_for_function("document.querySelector('[data-test-script-state=notRunning]') !== null")
    page.evaluate("() => new Promise(drawn => setTimeout(() => requestAnimationFrame(() => setTimeout(drawn)), 300))")


def settled(page: Page) -> None:
    """Wait until the page has drawn its numbers and charts and has stopped running."""
    page.locator('[data-testid="stMain"] :is(canvas, .js-plotly-plot .main-svg)').first.wait_for()
    finished(page)
