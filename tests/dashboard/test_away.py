"""What the pages say in a browser while the collector is slow, empty or away."""

from __future__ import annotations

import contextlib
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.dashboard.browser import finished, streamlit
from tests.dashboard.test_pages import part, problem, words
from tests.support.collector import Collector


class Slow(BaseHTTPRequestHandler):
    def do_GET(self):
        time.sleep(2.5)
        with contextlib.suppress(OSError):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

    def log_message(self, *_):
        pass


def test_a_page_that_waits_for_its_collector_says_so(page, tmp_path):
    """A slow page is drawn again, and then Streamlit warns of no value that comes from the link: its log is read."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Slow)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    with contextlib.closing(server.socket), streamlit(address, tmp_path, often=True) as url:
        page.goto(f"{url}/?range=5m")
        page.get_by_text("Waiting for the collector").wait_for()
        page.locator(".tt-frame").nth(4).wait_for()
        assert page.locator(".tt-frame").first.bounding_box()["height"] == 160
        page.get_by_text("This is not the collector's API").wait_for()
        page.locator(".tt-frame").first.wait_for(state="detached")
        page.wait_for_timeout(4_000)
        page.goto("about:blank")
        server.shutdown()


BEHIND_THE_WARNING = """() => [...document.querySelectorAll(':has(> [class*="st-key-stale-"]) ~ *')]
    .map(element => +getComputedStyle(element).opacity)"""


def test_an_empty_collector_and_one_that_is_gone_are_explained(page, tmp_path, show):
    collector = Collector(tmp_path / "data")
    with collector, streamlit(collector.urls["api"], tmp_path, often=True) as url:
        page.goto(f"{url}/?range=5m")
        assert "OTEL_EXPORTER_OTLP_ENDPOINT" in part(page, "no-data").inner_text()
        assert page.locator(".tt-verdict, .tt-slos").count() == 0
        empty = show("explore", None, collector.urls["api"])
        assert len(empty.error) == 0
        told = "\n".join(words(empty.markdown))
        assert f"OTEL_EXPORTER_OTLP_ENDPOINT={collector.urls['otlp-http']}" in told
        assert "Arrived so far: 0 payloads, refused 0; 0 spans, left out 0." in told
        collector.stop()
        # A page that is open keeps the last numbers, which are no all-clear.
        page.get_by_text("These are the numbers of").wait_for()
        finished(page)
        assert {*page.evaluate(BEHIND_THE_WARNING)} == {0.55}, "old numbers are dimmed"
        assert page.locator(".tt-verdict.good").count() == 0
        assert "The collector cannot be reached" in problem(page)
        for path in ("", "explore", "request"):
            gone = show(path, None, collector.urls["api"])
            assert len(gone.exception) == 0
            (told,) = words(gone.error)
            assert "The collector cannot be reached" in told
            assert "TOKENTRAIL_API_URL" in told


SOCKET = """url => new Promise(ended => {
    const socket = new WebSocket(url);
    socket.onopen = () => ended('open');
    socket.onclose = () => ended('closed');
})"""


def test_a_page_that_rebinds_its_name_reads_nothing(page, tmp_path):
    """The browser takes what it gets from http://rebound.test for that page's own, although it is this machine."""
    with streamlit("http://127.0.0.1:9", tmp_path, TOKENTRAIL_ALLOWED_HOSTS="mine.test") as url:
        for host, status, socket in (("rebound.test", 421, "closed"), ("mine.test", 200, "open")):
            there = url.replace("127.0.0.1", host)
            for path in ("/", "/_stcore/health", "/requests", "/_stcore/host-config"):
                answer = page.goto(there + path)
                assert (path, answer.status) == (path, status)
                assert ("TOKENTRAIL_ALLOWED_HOSTS" in answer.text()) == (status == 421)
            assert page.evaluate(SOCKET, f"ws{there.removeprefix('http')}/_stcore/stream") == socket
        page.goto("about:blank")
