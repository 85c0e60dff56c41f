"""An OTLP endpoint over HTTP that keeps all that it gets."""

from __future__ import annotations

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tokentrail.testing import Span, parse_spans


class Sink:
    """Keeps the bodies of each signal while it is entered. `url` is its address."""

    def __enter__(self) -> Sink:
        kept = self._bodies = {"traces": [], "metrics": [], "logs": []}

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                zipped = self.headers.get("content-encoding") == "gzip"
                kept[self.path.rsplit("/", 1)[1]].append(gzip.decompress(body) if zipped else body)
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    _bodies: dict[str, list[bytes]]

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def spans(self) -> list[Span]:
        """All spans so far."""
        return [span for body in self._bodies["traces"] for span in parse_spans(body)]

    @property
    def traces(self) -> bytes:
        """All bodies of spans so far, as one request."""
        return b"".join(self._bodies["traces"])

    def keep(self, folder: Path) -> None:
        """Write the bodies of each signal that has some, one behind the other, as one zipped request."""
        for signal_name, bodies in self._bodies.items():
            if bodies:
                (folder / f"{signal_name}.bin.gz").write_bytes(gzip.compress(b"".join(bodies), mtime=0))
