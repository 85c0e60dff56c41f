"""A server's name that leads to another address while the old one answers nothing."""

import socket
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from clickhouse_connect.driver.exceptions import OperationalError
from urllib3 import PoolManager
from urllib3.exceptions import HTTPError, ReadTimeoutError

from collector.base.status import IngestStatus
from collector.base.store_errors import reason_of
from collector.otlp.signals import TRACES
from collector.store import opener
from collector.store.connections import leave_old_addresses, remember_connections
from collector.store.insert import insert_otlp
from tests.support.certificates import make_certificate
from tests.support.clickhouse_server import Server
from tests.support.otlp import token_body
from tests.support.stores import new_store

pytestmark = pytest.mark.filterwarnings("ignore::urllib3.exceptions.InsecureRequestWarning")

OLD, NEW = "127.0.0.2", "127.0.0.1"
NAME = "store.test"


@pytest.fixture
def name(monkeypatch):
    """Addresses to which the name leads, the first one first."""
    addresses = [OLD]
    real = socket.getaddrinfo

    def look_up(host, *arguments, **named):
        hosts = addresses if host == NAME else [host]
        if not hosts:
            raise socket.gaierror
        return [found for one in hosts for found in real(one, *arguments, **named)]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return addresses


class Answering(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hangs = threading.Event()
    waiting = threading.Semaphore(0)

    def do_GET(self):
        if self.path == "/wait":
            self.waiting.release()
            self.hangs.wait(120)
        self.send_response(204)
        self.send_header("Address", self.server.server_address[0])
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture(params=["http", "https"])
def server(request, tmp_path, monkeypatch):
    """A port at both addresses, and pools whose connections are remembered."""
    monkeypatch.setattr(Answering, "hangs", threading.Event())
    servers = [ThreadingHTTPServer((NEW, 0), Answering)]
    servers.append(ThreadingHTTPServer((OLD, servers[0].server_port), Answering))
    if request.param == "https":
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*make_certificate(tmp_path))
        for one in servers:
            one.socket = context.wrap_socket(one.socket, server_side=True)
    for one in servers:
        one.daemon_threads = True
        one.handle_error = lambda *_: None
        threading.Thread(target=one.serve_forever).start()
    pools = PoolManager(cert_reqs="CERT_NONE", assert_hostname=False, retries=False)
    remember_connections(pools)
    yield pools, f"{request.param}://{NAME}:{servers[0].server_port}"
    Answering.hangs.set()
    for one in servers:
        one.shutdown()
        one.server_close()


class Waiting:
    """A thread that asks and waits."""

    def __init__(self, ask):
        self.error = None
        self._ask = ask
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        try:
            self._ask()
        except (HTTPError, OperationalError) as error:
            self.error = error

    def ended(self):
        self._thread.join(120)
        assert not self._thread.is_alive()
        return self.error


def test_what_waits_for_long_at_an_address_that_the_name_has_left_is_broken_off(server, name):
    pools, url = server
    old = Waiting(lambda: pools.request("GET", f"{url}/wait"))
    assert Answering.waiting.acquire(timeout=120)
    name[:] = [NEW, OLD]
    assert leave_old_addresses(NAME, patience_s=0.0) == 0, "the name still leads there"
    name[:] = [NEW]
    new = Waiting(lambda: pools.request("GET", f"{url}/wait"))
    assert Answering.waiting.acquire(timeout=120)
    assert leave_old_addresses(NAME, patience_s=3600.0) == 0, "it may be a slow one"
    assert leave_old_addresses("localhost", patience_s=0.0) == 0
    name.clear()
    assert leave_old_addresses(NAME, patience_s=0.0) == 0, "nobody knows the name"
    name[:] = [NEW]
    assert leave_old_addresses(NAME, patience_s=0.0) == 1
    assert isinstance(old.ended(), ReadTimeoutError), (
        "the driver would ask again by itself after the end of a connection"
    )
    assert leave_old_addresses(NAME, patience_s=0.0) == 0
    Answering.hangs.set()
    assert new.ended() is None


def test_a_connection_that_idles_at_an_old_address_is_not_used_again(server, name):
    pools, url = server
    assert pools.request("GET", url).headers["address"] == OLD
    name[:] = [NEW]
    assert pools.request("GET", url).headers["address"] == OLD
    assert leave_old_addresses(NAME, patience_s=0.0) == 1
    assert pools.request("GET", url).headers["address"] == NEW


def test_a_connection_that_was_made_before_is_not_used_again(server, name):
    _, url = server
    pools = PoolManager(cert_reqs="CERT_NONE", assert_hostname=False, retries=False)
    pools.request("GET", url)
    remember_connections(pools)
    pools.request("GET", url)
    name[:] = [NEW]
    assert leave_old_addresses(NAME, patience_s=0.0) == 1
    assert pools.request("GET", url).headers["address"] == NEW


class Forwarding:
    """An address that forwards connections to a server until it `hangs`: then it takes bytes and answers none."""

    def __init__(self, port):
        self.hangs = threading.Event()
        self.held = threading.Semaphore(0)
        self._port = port
        self._listener = socket.create_server((OLD, port))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection((NEW, self._port))
            for ends in ((client, server), (server, client)):
                threading.Thread(target=self._pump, args=ends, daemon=True).start()

    def _pump(self, source, target):
        try:
            while data := source.recv(65536):
                if self.hangs.is_set():
                    self.held.release()
                    return
                target.sendall(data)
        except OSError:
            pass

    def close(self):
        self._listener.close()


def test_an_insert_that_waits_at_a_silent_address_is_tried_at_the_new_one(name, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(opener, "_ASKED_EVERY_S", 0.0)
    new_store(tmp_path / "db")
    server = Server(tmp_path)
    server.start()
    old = Forwarding(server.port)
    status = IngestStatus()
    stage = opener.StoreOpener(f"http://{NAME}:{server.port}/default", status, retry_s=0.01)
    try:
        connected = threading.Barrier(2)

        def insert_twice():
            insert_otlp(stage.store, TRACES, token_body(trace=1), "first")
            connected.wait(120)
            connected.wait(120)
            insert_otlp(stage.store, TRACES, token_body(trace=2), "second")

        insert = Waiting(insert_twice)
        connected.wait(120)
        old.hangs.set()
        connected.wait(120)
        assert old.held.acquire(timeout=120)
        name[:] = [NEW]
        stage._ask()
        assert insert.error is None
        monkeypatch.setattr(opener, "_PATIENCE_S", 0.0)
        stage._ask()
        assert "has answered nothing, and the server's name has another address now" in reason_of(insert.ended())
        assert "connections to the old one end" in caplog.text
        assert status.snapshot().reason == "the collector is starting"
        insert_otlp(stage.store, TRACES, token_body(trace=2), "second")
        assert server.tokens() == (2, 6)
        caplog.clear()
        stage._ask()
        assert caplog.text == "", "once"
    finally:
        stage.store.close()
        old.close()
        server.kill()
