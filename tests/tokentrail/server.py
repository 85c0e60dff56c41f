"""A real HTTP server that answers as scripted."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server(ThreadingHTTPServer):
    """Answers each POST with the next of `script` (status, headers, body), then with 200."""

    daemon_threads = True

    def __init__(self, *script):
        self.script, self.posts = list(script), []
        self.hold = threading.Event()
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/v1/traces"


class _Handler(BaseHTTPRequestHandler):
    server: "Server"
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.posts.append((dict(self.headers), body))
        answer = self.server.script.pop(0) if self.server.script else (200, {}, b"")
        if answer == "hang":
            self.server.hold.wait()
        elif answer == "close":
            self.close_connection = True
        elif isinstance(answer, bytes):
            self.wfile.write(answer)
            self.close_connection = True
        else:
            status, headers, body = answer
            self.send_response(status)
            for name, value in (headers | {"Content-Length": str(len(body))}).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *args):
        """Quiet."""
