"""TLS on all ports, with certificates that openssl makes."""

import errno
import logging
import os
import shutil
import socket
import ssl
import stat
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace

import grpc
import httpx
import pytest
from starlette.responses import PlainTextResponse

from collector.access import tls as tls_module
from collector.access.tls import Tls, TlsFiles
from collector.access.validity import read_validity
from collector.app.http_server import HttpServer
from collector.otlp.signals import TRACES
from collector.pipeline.settings import Settings
from collector.receive.grpc import GrpcReceiver
from collector.receive.http import BodyLimits
from tests.collector.receive.test_otlp_http import WAIT_S, Receiver
from tests.support.certificates import make_certificate, make_signed
from tests.support.collector import Collector
from tests.support.otlp import token_body
from tokentrail.shared import regular_files
from tokentrail.shared.connection import client, remedy

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make certificates")


@pytest.fixture
def make(tmp_path):
    """Makes a certificate for localhost that signs itself; files are replaced when they exist."""
    made = []

    def make(name, common_name="localhost"):
        files = make_certificate(tmp_path, name, common_name)
        made.append(name)
        for file in files:
            os.utime(file, ns=(len(made), len(made)))  # a new time, however fast the test is
        return files

    return make


async def hello(scope, receive, send):
    await PlainTextResponse("hello")(scope, receive, send)


@pytest.fixture
def serve():
    started = []

    def serve(tls):
        server = HttpServer(hello, "test", "127.0.0.1", 0, tls=tls.context())
        server.start()
        started.append(server)
        return server.url

    yield serve
    for server in started:
        server.stop(1.0)


def get(url, ca, client=None):
    context = ssl.create_default_context(cafile=ca)
    if client:
        context.load_cert_chain(*client)
    return httpx.get(url, verify=context, timeout=WAIT_S)


def common_name(url, ca):
    """The subject of the certificate that a server shows now."""
    host, port = httpx.URL(url).host, httpx.URL(url).port
    context = ssl.create_default_context(cafile=ca)
    with socket.create_connection((host, port), WAIT_S) as plain:
        tls = context.wrap_socket(plain, server_hostname=host)
        return dict(pair[0] for pair in tls.getpeercert()["subject"])["commonName"]


@pytest.mark.parametrize(("scheme", "way_out"), [("https", "set TOKENTRAIL_API_TLS_CERT"), ("http", "write https://")])
def test_our_client_says_what_this_server_may_want(make, serve, monkeypatch, scheme, way_out):
    certificate, key = make("server")
    url = serve(Tls(TlsFiles(certificate, key, make("client")[0]))).replace("https", scheme)
    monkeypatch.setenv("TOKENTRAIL_API_TLS_CA", str(certificate))
    with client(url, WAIT_S) as http, pytest.raises(httpx.HTTPError) as failed:
        http.get("/")
    assert way_out in remedy(failed.value)


def test_https(make, serve):
    certificate, key = make("server")
    url = serve(Tls(TlsFiles(certificate, key)))
    assert url.startswith("https://")
    assert get(url, certificate).text == "hello"
    other, _ = make("other")
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        get(url, other)
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.get(url.replace("https", "http"), timeout=WAIT_S)


def test_an_idle_client_that_does_not_answer_the_end_of_tls_does_not_keep_the_server(make):
    certificate, key = make("server")
    server = HttpServer(hello, "test", "127.0.0.1", 0, tls=Tls(TlsFiles(certificate, key)).context())
    server.start()
    with httpx.Client(verify=ssl.create_default_context(cafile=certificate), timeout=WAIT_S) as client:
        assert client.get(server.url).text == "hello"
        assert server.stop(25.0)  # asyncio would wait 30 s


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1")
def test_old_versions_of_tls_are_refused(make, serve):
    certificate, key = make("server")
    url = serve(Tls(TlsFiles(certificate, key)))
    context = ssl.create_default_context(cafile=certificate)
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(httpx.ConnectError):
        httpx.get(url, verify=context, timeout=WAIT_S)


def test_clients_need_a_certificate_when_there_is_a_ca(make, serve):
    server, client, stranger = make("server"), make("client"), make("stranger")
    url = serve(Tls(TlsFiles(*server, client_ca=client[0])))
    assert get(url, server[0], client).text == "hello"
    for wrong in (None, stranger):
        with pytest.raises(httpx.HTTPError):
            get(url, server[0], wrong)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_client_of_a_ca_that_was_replaced_is_refused_also_when_it_resumes_its_session(make, serve, version):
    server, client = make("server"), make("client")
    ca = client[0].with_name("ca.pem")
    shutil.copy(client[0], ca)
    url = httpx.URL(serve(Tls(TlsFiles(*server, client_ca=ca))))
    context = ssl.create_default_context(cafile=server[0])
    context.load_cert_chain(*client)
    context.maximum_version = version

    def ask(opened, session=None):
        with suppress(OSError):
            plain = opened.enter_context(socket.create_connection((url.host, url.port), WAIT_S))
            connection = context.wrap_socket(plain, server_hostname="localhost", session=session)
            opened.enter_context(connection)
            connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            return connection.recv(100), connection.session
        return b"", None

    with ExitStack() as opened:  # OpenSSL forgets the session of a connection that was closed without a word
        answer, session = ask(opened)
        assert answer.startswith(b"HTTP/1.1 200")
        assert not session.has_ticket
        shutil.copy(make("stranger")[0], ca)
        assert ask(opened, session)[0] == ask(opened)[0] == b""


def test_a_new_certificate_is_shown_without_a_restart(make, serve, caplog):
    certificate, key = make("server", "first")
    url = serve(Tls(TlsFiles(certificate, key)))
    assert common_name(url, certificate) == "first"
    make("server", "second")
    assert common_name(url, certificate) == "second"
    good = certificate.read_bytes()
    certificate.write_text("nonsense")
    trusted = certificate.with_name("good.pem")
    trusted.write_bytes(good)
    assert common_name(url, trusted) == "second"
    assert [record.levelno for record in caplog.records if record.levelno > logging.WARNING] == [logging.ERROR]


def test_files_that_could_not_be_read_are_read_again_when_their_mode_changes(make, serve, monkeypatch):
    certificate, key = make("server", "first")
    url = serve(Tls(TlsFiles(certificate, key)))
    trusted = certificate.with_name("first.pem")
    trusted.write_bytes(certificate.read_bytes())
    make("server", "second")
    key.chmod(0)
    with monkeypatch.context() as patched:
        patched.setattr(regular_files, "read", denied)  # root may read the file
        assert common_name(url, trusted) == "first"
    key.chmod(stat.S_IRUSR)
    assert common_name(url, certificate) == "second"


def denied(_path):
    raise PermissionError(errno.EACCES, "Permission denied")


def test_a_key_that_was_removed_is_an_error_once_and_not_with_each_handshake(make, serve, caplog):
    certificate, key = make("server")
    tls = Tls(TlsFiles(certificate, key))
    url = serve(tls)
    elsewhere = key.rename(key.with_name("elsewhere"))
    usable = [tls.is_usable]
    assert [common_name(url, certificate) for _ in range(3)] == ["localhost"] * 3
    usable.append(tls.is_usable)
    elsewhere.rename(key)
    assert common_name(url, certificate) == "localhost"
    assert [*usable, tls.is_usable] == [True, False, True]
    assert [record.levelno for record in caplog.records if record.levelno > logging.WARNING] == [logging.ERROR]


def test_a_pipe_in_place_of_a_file_is_an_error_and_not_waited_for(make, serve, caplog):
    certificate, key = make("server")
    url = serve(Tls(TlsFiles(certificate, key)))
    key.unlink()
    os.mkfifo(key)
    assert common_name(url, certificate) == "localhost"
    assert f"{key}: it is no regular file (the old certificate stays)" in caplog.text
    with pytest.raises(ValueError, match=f"{key}: it is no regular file"):
        Tls(TlsFiles(certificate, key))


def test_a_new_ca_of_the_clients_counts_without_a_restart(make, serve):
    server, client = make("server"), make("client")
    url = serve(Tls(TlsFiles(*server, client_ca=client[0])))
    old = tuple(file.rename(file.with_name(f"old-{file.name}")) for file in client)
    make("client")
    assert get(url, server[0], client).text == "hello"
    with pytest.raises(httpx.HTTPError):
        get(url, server[0], old)


@pytest.mark.parametrize("missing", ["certificate", "key"])
def test_files_that_cannot_be_used_end_the_start(make, missing):
    certificate, key = make("server")
    {"certificate": certificate, "key": key}[missing].unlink()
    with pytest.raises(ValueError, match=str(certificate)):
        Tls(TlsFiles(certificate, key))


def test_a_key_of_another_certificate_ends_the_start(make):
    with pytest.raises(ValueError, match="TLS cannot be used"):
        Tls(TlsFiles(make("one")[0], make("two")[1]))


@pytest.mark.parametrize("form", [("-traditional",), ()])
def test_a_key_with_a_password_ends_the_start_and_nobody_is_asked_for_it(make, form):
    certificate, key = make("server")
    locked = key.with_suffix(".locked")
    command = ["openssl", "pkey", "-in", key, "-out", locked, "-aes128", "-passout", "pass:secret", *form]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    with pytest.raises(ValueError, match=f"the key {locked}: the key has a password: write it into a file without one"):
        Tls(TlsFiles(certificate, locked))


def test_a_client_ca_that_cannot_be_read_is_named(make, tmp_path):
    with pytest.raises(ValueError, match=f"and the client CA {tmp_path / 'missing'}: .*No such file"):
        Tls(TlsFiles(*make("server"), tmp_path / "missing"))


@pytest.mark.parametrize("given", [{"tls_cert": "c"}, {"tls_key": "k"}, {"tls_client_ca": "ca"}])
def test_settings_need_certificate_and_key_together(given):
    with pytest.raises(ValueError, match="TOKENTRAIL_TLS_KEY"):
        Settings(**given)


class TestGrpc:
    @pytest.fixture
    def export(self, tmp_path):
        receiver = Receiver(tmp_path)
        started = []

        def start(tls):
            server = GrpcReceiver([receiver.ingest], BodyLimits(4_000, 8_000), "127.0.0.1", 0, tls=tls)
            server.start()
            started.append(server)

            def export(**files):
                contents = {name: file.read_bytes() for name, file in files.items()}
                address = server.url.removeprefix("https://")
                with grpc.secure_channel(address, grpc.ssl_channel_credentials(**contents)) as channel:
                    return channel.unary_unary(f"/{TRACES.grpc_service}/Export")(token_body(), timeout=120)

            return export

        yield start
        for server in started:
            server.stop(1.0)
        receiver.commit.stop(WAIT_S)

    def test_grpc(self, make, export):
        certificate, key = make("server")
        call = export(Tls(TlsFiles(certificate, key)))
        assert call(root_certificates=certificate) == b""
        other, _ = make("other")
        with pytest.raises(grpc.RpcError):
            call(root_certificates=other)

    def test_clients_need_a_certificate_when_there_is_a_ca(self, make, export):
        server, client = make("server"), make("client")
        call = export(Tls(TlsFiles(*server, client_ca=client[0])))
        assert call(root_certificates=server[0], private_key=client[1], certificate_chain=client[0]) == b""
        with pytest.raises(grpc.RpcError):
            call(root_certificates=server[0])

    def test_a_new_ca_of_the_clients_counts_without_a_restart(self, make, export):
        server, client = make("server"), make("client")
        call = export(Tls(TlsFiles(*server, client_ca=client[0])))
        old = [file.rename(file.with_name(f"old-{file.name}")) for file in client]
        make("client")
        assert call(root_certificates=server[0], private_key=client[1], certificate_chain=client[0]) == b""
        with pytest.raises(grpc.RpcError):
            call(root_certificates=server[0], private_key=old[1], certificate_chain=old[0])

    def test_a_new_certificate_is_shown_without_a_restart(self, make, export):
        certificate, key = make("server")
        call = export(Tls(TlsFiles(certificate, key)))
        old = certificate.with_name("old.pem")
        old.write_bytes(certificate.read_bytes())
        assert call(root_certificates=old) == b""
        make("server")
        assert call(root_certificates=certificate) == b""
        with pytest.raises(grpc.RpcError):
            call(root_certificates=old)
        newer = certificate.with_name("newer.pem")
        newer.write_bytes(certificate.read_bytes())
        certificate.write_text("nonsense")
        assert call(root_certificates=newer) == b""

    @pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
    def test_a_client_of_a_ca_that_was_replaced_is_refused_also_when_it_resumes_its_session(
        self, make, tmp_path, version
    ):
        server, client = make("server"), make("client")
        ca = client[0].with_name("ca.pem")
        shutil.copy(client[0], ca)
        receiver = Receiver(tmp_path)
        grpc_server = GrpcReceiver(
            [receiver.ingest], BodyLimits(4_000, 8_000), "127.0.0.1", 0, tls=Tls(TlsFiles(*server, client_ca=ca))
        )
        grpc_server.start()
        port = httpx.URL(grpc_server.url).port
        context = ssl.create_default_context(cafile=server[0])
        context.load_cert_chain(*client)
        context.set_alpn_protocols(["h2"])
        context.maximum_version = version

        def ask(session=None):
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), WAIT_S) as plain:
                connection = context.wrap_socket(plain, server_hostname="localhost", session=session)
                connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
                return connection.recv(100), connection.session, connection.session_reused
            return b"", None, False

        try:
            answer, session, _ = ask()
            assert answer
            assert ask(session)[2], "the same CA"
            shutil.copy(make("stranger")[0], ca)
            assert [ask(session)[0], ask()[0]] == [b"", b""]
        finally:
            grpc_server.stop(1.0)
            receiver.commit.stop(WAIT_S)

    def test_a_configuration_is_given_once_because_grpc_replaces_it_while_it_is_used(self, make, monkeypatch):
        waits = []
        monkeypatch.setattr(tls_module, "time", SimpleNamespace(sleep=waits.append, time=time.time))
        certificate, key = make("server")
        tls = Tls(TlsFiles(certificate, key))
        tls.grpc_credentials()
        assert tls._newest_grpc_configuration() is None
        make("server")
        tls._read_again()  # as a handshake of HTTP does
        assert isinstance(tls._newest_grpc_configuration(), grpc.ServerCertificateConfiguration)
        assert len(waits) == 1, "handshakes that have looked at the old one pass"
        assert tls._newest_grpc_configuration() is None
        assert len(waits) == 1

    def test_handshakes_at_the_same_time_do_not_end_the_collector(self, make, tmp_path):
        certificate, key = make("server")
        context = ssl.create_default_context(cafile=certificate)
        collector = Collector(tmp_path / "data", "--tls-cert", str(certificate), "--tls-key", str(key))
        collector.http = httpx.Client(verify=context, timeout=WAIT_S)
        collector.start()
        port = httpx.URL(collector.urls["otlp-grpc"]).port

        def shake_hands(_):
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), WAIT_S) as plain:
                context.wrap_socket(plain, server_hostname="localhost").close()

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(shake_hands, range(1000)))
        assert collector.process.poll() is None
        assert collector.post(token_body()).status_code == 200
        assert collector.stop() == 0
        log = Path(collector.log.name).read_text()
        assert not [word for word in ("Check failed", "fatal error", "work left") if word in log]


def test_a_new_certificate_that_clients_refuse_is_an_error_in_the_log(tmp_path, make, serve, caplog):
    certificate, key = make("server")
    tls = Tls(TlsFiles(certificate, key))
    url = serve(tls)
    assert tls.validity == read_validity(certificate, key)
    assert not caplog.messages
    for days, purpose, problem in ((-1, "serverAuth", "it has been over since"), (9, "clientAuth", "purpose")):
        caplog.clear()
        new, new_key = make_signed(tmp_path, f"new{days}", days=days, purpose=purpose)
        new_key.rename(key)
        new.rename(certificate)
        with suppress(httpx.HTTPError):
            httpx.get(url, verify=False)
        (line,) = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert f"clients refuse the certificate {certificate}: " in line.message
        assert problem in line.message
        assert (tls.validity is None) is (purpose == "clientAuth")
        assert tls.is_usable is (purpose == "serverAuth"), "a certificate that is over has an alert of its own"
