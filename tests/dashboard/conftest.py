"""Fixtures: a real collector with real spans, a real Streamlit, a real browser.

Files that have a browser run one after the other (BROWSER of tests/conftest.py), and share it. It ends with the last
of them: a browser driven synchronously keeps an event loop in the tests' thread.
"""

from __future__ import annotations

from functools import cache

import httpx
import pytest

from tests.dashboard.browser import PAGES, browsing, chromium, streamlit
from tests.dashboard.feed import Engine
from tests.support.collector import Collector

SLOS = """
slos:
  - name: chat
    description: Interactive chat reads as fluid.
    objective: "0.95"
    window: 30d
    select: {slo_class: [chat]}
    thresholds: {ttft: 180ms, tpot: 100ms}
  - name: all
    description: Every request ends within a minute.
    objective: "0.9"
    window: 30d
    thresholds: {e2e: 60s}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("dashboard")


@pytest.fixture(scope="module")
def collector(folder):
    slos = folder / "slos.yaml"
    slos.write_text(SLOS)
    with Collector(folder / "data", "--slos", str(slos)) as running:
        yield running


@pytest.fixture(scope="module")
def lived(collector):
    """The disturbed and the open request of an engine, once the collector has all requests."""
    engine = Engine(collector.urls["otlp-http"])
    lived = engine.live()
    collector.wait_until(lambda: collector.get("/api/v1/summary").json()["requests"]["total"] == 45)
    collector.wait_until(lambda: collector.get("/api/v1/summary").json()["requests"]["in_flight"] == 1)
    yield lived
    engine.trail.shutdown()


@pytest.fixture(scope="module")
def disturbed(lived):
    return f"{lived[0].trace_id:032x}"


@pytest.fixture(scope="module")
def still_open(lived):
    return f"{lived[1].trace_id:032x}"


@pytest.fixture(scope="module")
def api(collector, lived):
    """Answers of the API for the last hour: on a slow machine, the pages' tests outlast the default of 15 minutes."""

    def get(path, **params):
        if path in ("summary", "incidents", "requests"):
            params = {"start": "-1h"} | params
        response = httpx.get(f"{collector.urls['api']}/api/v1/{path}", params=params, timeout=120)
        response.raise_for_status()
        return response.json()

    return get


@pytest.fixture(scope="module")
def dashboard(collector, lived, folder):
    with streamlit(collector.urls["api"], folder) as url:
        yield url


@pytest.fixture(scope="package")
def running_day(tmp_path_factory):
    """A collector with the day of five faults, of which the last goes on, and its `Day`."""
    from tests.support.day import day_collector  # late: it imports the collector

    with day_collector(tmp_path_factory.mktemp("day") / "data") as running:
        yield running


@pytest.fixture(scope="package")
def day_url(running_day, tmp_path_factory):
    """The address of a dashboard over the day."""
    with streamlit(running_day[0].urls["api"], tmp_path_factory.mktemp("streamlit")) as url:
        yield url


@pytest.fixture(scope="package")
def page():
    """One tab for all tests, so that the browser loads and compiles Streamlit's scripts once."""
    if chromium() is None:
        pytest.skip("chromium is not installed (make system)")
    with browsing() as browser:
        # Without reduced motion, animations of pages that wait take a third of the browser's CPU.
        context = browser.new_context(viewport={"width": 1440, "height": 1200}, reduced_motion="reduce")
        context.set_default_timeout(240_000)
        yield context.new_page()


TRACE = "a" * 32
"""The trace id that pages of one request are asked for."""


@pytest.fixture(scope="session")
def components_found():
    """For each page, AppTest looks into all installed packages for components of Streamlit: 0.2 s of CPU, here once."""
    from streamlit.components.v2 import manifest_scanner  # late: it takes a second

    found = cache(manifest_scanner.scan_component_manifests)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifest_scanner, "scan_component_manifests", found)
        yield


class Inline:
    """In place of threads: what is asked ahead is answered at once, in order, and before the test ends."""

    def submit(self, run, *args):
        run(*args)


@pytest.fixture
def show(monkeypatch, components_found):
    """Run a page over the answer to each path of the API; the last page that it drew. `show.asked` is what it asked.

    Without answers, it asks a collector at this address.
    """
    from streamlit.testing.v1 import AppTest
    from streamlit.util import calc_hash

    from dashboard import api

    asked: list[tuple[str, dict[str, str]]] = []

    def show(page, answers, address="http://127.0.0.1:8080", **query):
        def answer(request):
            path = request.url.path.removeprefix("/api/v1/")
            asked.append((path, dict(request.url.params)))
            told = answers(path)
            return told if isinstance(told, httpx.Response) else httpx.Response(200, json=told)

        monkeypatch.setenv("TOKENTRAIL_API_URL", address)
        if answers:
            client = httpx.Client(base_url="http://collector/api/v1/", transport=httpx.MockTransport(answer))
            monkeypatch.setattr(api, "_client", lambda *_: client)
        monkeypatch.setattr(api, "_AT_ONCE", Inline())
        api.forget()
        app = AppTest.from_file(str(PAGES), default_timeout=300)
        app._page_hash = calc_hash(page)
        if page == "request":
            app.query_params["trace_id"] = TRACE
        for name, value in query.items():
            app.query_params[name] = value
        return app.run()

    show.asked = asked  # type: ignore[attr-defined]
    yield show
    api.forget()
