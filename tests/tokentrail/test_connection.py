"""How the command line and the dashboard reach a collector, over real sockets."""

import ssl
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import httpx
import pytest

from tests.support.certificates import make_certificate
from tokentrail.shared.connection import (
    ConnectionSettingError,
    client,
    in_words,
    key_header,
    remedy,
    transport,
    way_out,
)

NOBODY = "http://127.0.0.1:9"


class Echo(BaseHTTPRequestHandler):
    def do_GET(self):
        answer = self.headers.get("authorization", "").encode()
        self.send_response(200)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


@pytest.fixture
def serve():
    """Serve with a certificate, or without one; with `client_ca`, clients need a certificate too."""
    running = []

    def serve(certificate=None, client_ca=None):
        http = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
        http.handle_error = lambda *_: None  # a handshake that fails is part of a test
        if certificate:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(*certificate)
            if client_ca:
                context.load_verify_locations(client_ca)
                context.verify_mode = ssl.CERT_REQUIRED
            http.socket = context.wrap_socket(http.socket, server_side=True)
        Thread(target=http.serve_forever, daemon=True).start()
        running.append(http)
        return f"{'https' if certificate else 'http'}://127.0.0.1:{http.server_port}"

    yield serve
    for http in running:
        http.shutdown()
        http.server_close()


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (httpx.ConnectError("[Errno 111] Connection refused"), "Connection refused"),
        (httpx.ConnectError("[Errno -2] Name or service not known"), "Name or service not known"),
        (httpx.ReadTimeout("timed out"), "timed out"),
        (httpx.ReadError(""), "the connection broke"),
    ],
)
def test_an_error_is_told_in_words(error, words):
    assert in_words(error) == words


def get(url):
    with client(url, 60) as http:
        return http.get("/").raise_for_status().text


def failure(url):
    with pytest.raises(httpx.HTTPError) as failed:
        get(url)
    return remedy(failed.value)


def test_the_key_is_sent(serve, monkeypatch):
    assert key_header() == {}
    monkeypatch.setenv("TOKENTRAIL_API_KEY", " tokentrail_1_2\n")
    assert get(serve()) == "Bearer tokentrail_1_2"
    for wrong in ("tokentrail_…", "tokentrail_1\ntokentrail_2"):
        monkeypatch.setenv("TOKENTRAIL_API_KEY", wrong)
        with pytest.raises(ConnectionSettingError, match="TOKENTRAIL_API_KEY holds characters that no key has"):
            client(NOBODY, 60)


def test_a_proxy_of_the_environment_is_not_used(serve, monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, NOBODY)
        monkeypatch.setenv(name.upper(), NOBODY)
    assert get(serve()) == ""


def test_a_certificate_of_a_ca_of_ones_own(serve, monkeypatch, tmp_path):
    certificate, key = make_certificate(tmp_path)
    url = serve((certificate, key))
    assert "TOKENTRAIL_API_TLS_CA" in failure(url)
    monkeypatch.setenv("TOKENTRAIL_API_TLS_CA", f" {certificate}\n")
    assert get(url) == ""
    monkeypatch.delenv("TOKENTRAIL_API_TLS_CA")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))  # OpenSSL's name for the CAs of this machine
    assert get(url) == ""
    with client(url, 60) as http:
        assert [http.get(address).status_code for address in (serve(), url, url)] == [200] * 3


def test_a_collector_that_asks_for_a_certificate(serve, monkeypatch, tmp_path):
    server, ours = make_certificate(tmp_path), make_certificate(tmp_path, "ours")
    url = serve(server, client_ca=ours[0])
    monkeypatch.setenv("TOKENTRAIL_API_TLS_CA", str(server[0]))
    assert "TOKENTRAIL_API_TLS_CERT and TOKENTRAIL_API_TLS_KEY" in failure(url)
    monkeypatch.setenv("TOKENTRAIL_API_TLS_CERT", str(ours[0]))
    monkeypatch.setenv("TOKENTRAIL_API_TLS_KEY", str(ours[1]))
    assert get(url) == ""
    both = tmp_path / "both.pem"
    both.write_bytes(ours[0].read_bytes() + ours[1].read_bytes())
    monkeypatch.setenv("TOKENTRAIL_API_TLS_CERT", str(both))
    monkeypatch.delenv("TOKENTRAIL_API_TLS_KEY")
    assert get(url) == ""


def test_https_to_a_port_of_plain_http(serve):
    assert failure(serve().replace("http", "https")) == "the collector speaks plain HTTP: write http://"
    assert failure(NOBODY) == ""


@pytest.mark.parametrize("address", ["127.0.0.1:8080", "localhost:8080", "ftp://localhost"])
def test_an_address_without_http(address):
    assert failure(address) == "write http:// or https:// before the host"


def test_a_file_that_is_none_is_named(monkeypatch, tmp_path):
    certificate, key = make_certificate(tmp_path)
    for wrong in (tmp_path / "absent.pem", key):
        monkeypatch.setenv("TOKENTRAIL_API_TLS_CA", str(wrong))
        with pytest.raises(ConnectionSettingError, match=f"TOKENTRAIL_API_TLS_CA names no CA in PEM: {wrong}"):
            transport()
    monkeypatch.delenv("TOKENTRAIL_API_TLS_CA")
    monkeypatch.setenv("TOKENTRAIL_API_TLS_CERT", str(certificate))
    with pytest.raises(ConnectionSettingError, match=f"TOKENTRAIL_API_TLS_KEY name no certificate: {certificate}"):
        transport()


@pytest.mark.parametrize("address", ["user:secret@host:port", "user:secret#x@host:8080"])
def test_an_address_that_is_none_is_told_without_its_password(address):
    with pytest.raises(ConnectionSettingError, match=r"http://…@host.*encode the characters of the password") as told:
        client(f"http://{address}", 60)
    assert "secret" not in str(told.value)
    with pytest.raises(ConnectionSettingError, match="Invalid port: 'port'"):
        client("http://host:port", 60)


@pytest.mark.parametrize("host", ["a..b", "a" * 300])
def test_a_host_that_is_no_name_is_one_that_does_not_answer(host):
    with (
        client(f"http://{host}:8080", 60) as http,
        pytest.raises(httpx.ConnectError, match="no host can have the name"),
    ):
        http.get("/")


def test_the_way_out_names_the_option_unless_a_better_one_is_known():
    assert way_out(httpx.ConnectError("refused"), "--url") == "start the collector, or name its address with --url"
    assert way_out(httpx.ConnectError("CERTIFICATE_VERIFY_FAILED"), "--url").startswith("set TOKENTRAIL_API_TLS_CA")
