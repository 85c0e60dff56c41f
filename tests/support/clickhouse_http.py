"""ClickHouse's HTTP interface, answered by chDB: a server for tests of the `http://` store.

`python clickhouse_http.py PATH PORT [HOST]`, in a working directory of its own (chDB keeps format schemas there).
It knows what clickhouse-connect sends: statements in the body or in `query=`, settings and `param_…` in the query
string, gzip, lz4 or zstd bodies, long parameters as a form; errors carry ClickHouse's code in a header. Inserts of OTLP
wait while the working directory has a file `hold`.
"""

import gzip
import re
import sys
import tempfile
import time
from email import message_from_bytes
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import chdb
import lz4.frame  # type: ignore[import-untyped]
import zstandard

NOT_SETTINGS = {"query", "database", "client_protocol_version", "session_id", "query_id", "user", "password"}
NOT_SETTINGS |= {"enable_http_compression", "http_headers_progress_interval_ms", "send_progress_in_http_headers"}
NOT_SETTINGS |= {
    "wait_end_of_query",
    "compress",
    "role",
    "cancel_http_readonly_queries_on_client_close",
    "session_timeout",
}
UNCOMPILED = {
    "compile_expressions": "0", "compile_aggregate_expressions": "0", "compile_sort_description": "0",
    "max_threads": "1",
}  # fmt: skip
"""Compiling a question of a test, or a second thread for it, takes longer than answering it."""
LONGEST_FIELD = 128 * 1024
"""ClickHouse's `http_max_field_value_size`."""
INSERT = re.compile(rb"\s*INSERT INTO\b.*\bFORMAT \w+\s*", re.IGNORECASE)


class Handler(BaseHTTPRequestHandler):
    server: "Server"
    protocol_version = "HTTP/1.1"
    connection = None

    def do_GET(self):
        self._answer(200, b"Ok.\n") if urlsplit(self.path).path == "/ping" else self.do_POST()

    def do_POST(self):
        parameters = dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True))
        body = self._body()
        if self.headers.get("Content-Type", "").startswith("multipart/form-data"):  # long parameters
            parameters |= _form(self.headers["Content-Type"], body)
            body = b""
        if any(len(value) > LONGEST_FIELD for value in parameters.values()):
            self._answer(400, b"HTML Form Exception: Field value too long", {"X-ClickHouse-Exception-Code": "1000"})
            return
        head, _, rest = body.partition(b"\n")
        if INSERT.fullmatch(sql := parameters.get("query", "").encode()):
            head, rest = sql, body
        try:
            if INSERT.fullmatch(head):
                result = self._insert(head.decode(), rest, parameters)
            else:
                result = self._select(parameters.get("query", ""), body, parameters)
            self._answer(200, result)
        except Exception as error:
            code = re.search(r"Code: (\d+)", str(error))
            self._answer(500, str(error).encode(), {"X-ClickHouse-Exception-Code": code[1] if code else "1002"})

    def _select(self, sql, body, parameters):
        statement = (sql + "\n" + body.decode()).strip().rstrip(";")
        found = re.search(r"\s+FORMAT\s+(\w+)\s*$", statement, re.IGNORECASE)
        if found:
            statement = statement[: found.start()]
        # chDB takes a value up to its first NUL. ClickHouse reads the escape as a NUL.
        values = {
            k.removeprefix("param_"): v.replace("\0", "\\0") for k, v in parameters.items() if k.startswith("param_")
        }
        return self.server.run(statement, found[1] if found else "TabSeparated", _settings(parameters), values)

    def _insert(self, sql, body, parameters):
        while "otlp_" in sql and Path("hold").exists():
            time.sleep(0.01)
        with tempfile.NamedTemporaryFile(suffix=".raw") as file:
            file.write(body)
            file.flush()
            insert, _, form = sql.rpartition(" FORMAT ")
            statement = f"{insert} FROM INFILE '{file.name}' FORMAT {form}"
            return self.server.run(statement, "TabSeparated", _settings(parameters), {})

    def _body(self):
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        match self.headers.get("Content-Encoding"):
            case "gzip":
                return gzip.decompress(body)
            case "lz4":
                return lz4.frame.decompress(body)
            case "zstd":
                return zstandard.ZstdDecompressor().decompressobj().decompress(body)
        return body

    def _answer(self, status, body, headers=None):
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), "X-ClickHouse-Query-Id": "1", **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    """One chDB engine; every request has its own session."""

    daemon_threads = True

    def __init__(self, path, port, options="", host="127.0.0.1"):
        Path(path).mkdir(parents=True, exist_ok=True)
        self._dsn = f"{path}{options}"
        self._keep = chdb.connect(self._dsn)
        super().__init__((host, port), Handler)

    def run(self, statement, form, settings, values):
        session = chdb.connect(self._dsn)
        try:
            session.query("SET " + ", ".join(f"{k} = {_quoted(v)}" for k, v in (UNCOMPILED | settings).items()))
            return session.query(statement, form, params=values).bytes()
        finally:
            session.close()


def _form(content_type, body):
    parts = message_from_bytes(f"Content-Type: {content_type}\r\n\r\n".encode() + body).get_payload()
    return {p.get_param("name", header="content-disposition"): p.get_payload(decode=True).decode() for p in parts}


def _settings(parameters):
    return {k: v for k, v in parameters.items() if k not in NOT_SETTINGS and not k.startswith("param_")}


def _quoted(value):
    return value if re.fullmatch(r"-?\d+", value) else "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


if __name__ == "__main__":
    server = Server(sys.argv[1], int(sys.argv[2]), host=(*sys.argv[3:], "127.0.0.1")[0])
    print(f"listening on http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
