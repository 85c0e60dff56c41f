"""A real collector with real spans, a real Streamlit, a real browser."""

from __future__ import annotations

import shutil
import sys
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import sync_playwright

from tests.dashboard.feed import Engine
from tests.support.collector import Collector
from tokentrail.cli.processes import Child, free_port

APP = Path(__file__).parents[2] / "dashboard" / "app.py"
CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

SLOS = """
slos:
  - name: chat
    description: Interactive chat reads as fluid.
    objective: "0.95"
    window: 30d
    select: {slo_class: [chat]}
    thresholds: {ttft: 180ms, tpot: 100ms}
  - name: all
    description: Every request is answered in time, whatever its class.
    objective: "0.9"
    window: 30d
    thresholds: {e2e: 60s}
"""


@contextmanager
def streamlit(api_url: str, folder: Path):
    """The dashboard on a free port; its URL."""
    port = free_port(0)
    command = [sys.executable, "-m", "streamlit", "run", str(APP), "--server.address", "127.0.0.1"]
    child = Child(
        "dashboard", [*command, "--server.port", str(port)], folder / "streamlit.log", {"TOKENTRAIL_API_URL": api_url}
    )
    try:
        child.wait_ready(f"http://127.0.0.1:{port}/_stcore/health", timeout_s=60)
        yield f"http://127.0.0.1:{port}"
    finally:
        child.stop()
    assert "Traceback" not in child.log.read_text()


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("dashboard")


@pytest.fixture(scope="session")
def collector(folder):
    slos = folder / "slos.yaml"
    slos.write_text(SLOS)
    with Collector(folder / "data", "--slos", str(slos)) as running:
        yield running


@pytest.fixture(scope="session")
def disturbed(collector):
    """The trace id of the disturbed request, once everything is there."""
    engine = Engine(collector.urls["otlp-http"])
    request = engine.live()
    collector.wait_until(lambda: collector.get("/api/v1/summary").json()["requests"]["total"] == 43)
    collector.wait_until(lambda: collector.get("/api/v1/summary").json()["requests"]["in_flight"] == 1)
    yield f"{request.trace_id:032x}"
    engine.trail.shutdown()


@pytest.fixture(scope="session")
def api(collector, disturbed):
    def get(path, **params):
        response = httpx.get(f"{collector.urls['api']}/api/v1/{path}", params=params, timeout=10)
        response.raise_for_status()
        return response.json()

    return get


@pytest.fixture(scope="session")
def dashboard(collector, disturbed, folder):
    with streamlit(collector.urls["api"], folder) as url:
        yield url


@pytest.fixture(scope="session")
def browser():
    executable = shutil.which("chromium") or shutil.which("chromium-browser")
    if executable is None:
        pytest.skip("chromium is not installed (make system)")
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=executable, args=CHROMIUM_FLAGS)
        yield running
        running.close()


@pytest.fixture
def page(browser):
    context = browser.new_context(viewport={"width": 1440, "height": 1200})
    context.set_default_timeout(20_000)
    yield context.new_page()
    context.close()
