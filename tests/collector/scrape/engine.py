"""An HTTP server that answers scrapes in turn, as a recorded engine did."""

import gzip
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.support.collector import ROOT

DATA = ROOT / "tests" / "data"


def recorded(folder, name=None):
    """The scrapes of a recording: time in unix ns, and text."""
    with gzip.open(DATA / folder / "metrics-series.jsonl.gz", "rt") as file:
        rows = [json.loads(line) for line in file]
    return [(row["t0_ns"], row["text"]) for row in rows if name in (None, row.get("name"))]


class Engine:
    """Answers GET with `pages` in turn, the last one for ever; a page may be a function of the request's handler."""

    def __init__(self, *pages):
        self.pages = list(pages)
        self.requests = []
        self._lock = threading.Lock()
        engine = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                with engine._lock:
                    engine.requests.append(dict(self.headers) | {":path": self.path})
                    page = engine.pages.pop(0) if len(engine.pages) > 1 else engine.pages[0]
                if callable(page):
                    page(self)
                else:
                    self.send(page)

            def send(self, text, status=200, **headers):
                body = text if isinstance(text, bytes) else text.encode()
                self.send_response(status)
                for key, value in ({"content-type": "text/plain"} | headers).items():
                    self.send_header(key.replace("_", "-"), value)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        self.url = f"http://{self.address}/metrics"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()
