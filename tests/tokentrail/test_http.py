"""The transport and the threads against a real HTTP server that behaves badly."""

import contextlib
import gc
import gzip
import itertools
import logging
import socket
import threading
import time
import zlib
from email.utils import formatdate

import pytest
import requests
from google.rpc.status_pb2 import Status
from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY, get_value
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider

from tests.tokentrail.support import MS, T0, start
from tokentrail import Trail, now_ns
from tokentrail._send.compression import decompressor
from tokentrail._send.http import Endpoint, OtlpHttp, is_on_this_machine
from tokentrail._send.transport import SendStatus
from tokentrail.config import Settings
from tokentrail.testing import parse_spans

PROTOBUF = {"Content-Type": "application/x-protobuf"}


def post(server, *, timeout_s=5.0):
    return OtlpHttp(Endpoint(server.url, PROTOBUF, timeout_s))(b"body")


def background_trail(url, *, compression=Compression.NoCompression, timeout_s=5.0):
    settings = Settings(Endpoint(url, PROTOBUF, timeout_s, compression), schedule_delay_s=0.01, strict=True)
    provider = TracerProvider(resource=Resource({"service.name": "test"}), shutdown_on_exit=False)
    return Trail(settings, provider)


@pytest.fixture(params=["http_proxy", "HTTP_PROXY", "all_proxy"])
def proxied(request, monkeypatch):
    """Makes an address the proxy of the environment."""
    return lambda url: monkeypatch.setenv(request.param, url)


def test_a_proxy_does_not_stand_between_this_machine_and_itself(serve, proxied):
    proxied("http://127.0.0.1:9")
    url = serve().url
    for here in (url, url.replace("127.0.0.1", "localhost")):
        assert OtlpHttp(Endpoint(here, PROTOBUF, 5.0))(b"body").status is SendStatus.DELIVERED


def test_a_collector_elsewhere_is_reached_through_the_proxy(serve, proxied):
    proxy = serve()
    proxied(proxy.url)
    answer = OtlpHttp(Endpoint("http://collector.test:4318/v1/traces", PROTOBUF, 5.0))(b"body")
    assert (answer.status, len(proxy.posts)) == (SendStatus.DELIVERED, 1)


@pytest.mark.parametrize(
    ("url", "local"),
    [
        ("http://localhost:4318/v1/traces", True), ("https://LOCALHOST", True), ("localhost:4317", True),
        ("http://127.3.2.1:1", True), ("http://[::1]:4318", True), ("[::1]:4317", True),
        ("http://localhost.example:4318", False), ("http://10.0.0.1", False), ("collector:4317", False), ("", False),
    ],
)  # fmt: skip
def test_what_is_on_this_machine(url, local):
    assert is_on_this_machine(url) is local


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_these_answers_mean_again(serve, status):
    outcome = post(serve((status, {"Retry-After": "7"}, b"busy")))
    assert (outcome.status, outcome.retry_after_s) == (SendStatus.RETRY, 7)
    assert str(status) in outcome.detail
    assert "busy" in outcome.detail


def test_retry_after_may_be_a_date_and_may_be_nonsense(serve):
    server = serve(
        (503, {"Retry-After": formatdate(4_102_444_800, usegmt=True)}, b""), (503, {"Retry-After": "soon"}, b"")
    )
    assert post(server).retry_after_s > 1_000
    assert post(server).retry_after_s is None


@pytest.mark.parametrize("status", [400, 401, 404, 500])
def test_these_answers_mean_never_and_say_why(serve, status):
    server = serve((status, {}, b"no such thing"))
    outcome = post(server)
    assert outcome.status is SendStatus.REFUSED
    assert all(part in outcome.detail for part in (server.url, str(status), "no such thing"))
    assert len(server.posts) == 1


def test_a_body_that_is_too_large_is_to_be_split(serve):
    outcome = post(serve((413, {}, b"too large")))
    assert outcome.status is SendStatus.TOO_LARGE
    assert "too large" in outcome.detail


def test_a_collector_that_is_away_is_told_in_the_words_of_the_system():
    with socket.socket() as taken:  # bound and not listening
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1/traces"
        assert OtlpHttp(Endpoint(url, PROTOBUF, 5.0))(b"body").detail == f"{url}: Connection refused"


def test_an_answer_that_does_not_come_is_told_in_one_sentence_and_its_connection_is_closed():
    gc.disable()  # urllib3's errors lie in a ring of frames, which hold the connection
    try:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            url = f"http://127.0.0.1:{silent.getsockname()[1]}/v1/traces"
            told = OtlpHttp(Endpoint(url, PROTOBUF, 0.2))(b"body").detail
            with silent.accept()[0] as connection:
                connection.settimeout(10)
                assert [*iter(lambda: connection.recv(65536), b"")], "it has what was sent, and then an end"
        assert told == f"{url}: Read timed out. (read timeout=0.2)"
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (Status(code=16, message="send a key").SerializeToString(), "answered 401: 'send a key'"),
        (Status(code=16).SerializeToString(), "answered 401: '\\x08\\x10'"),
        (b"sign in first", "answered 401: 'sign in first'"),
        (b"", "answered 401: ''"),
        (b"x" * 5000, f"answered 401: '{'x' * 200}'"),
    ],
)
def test_a_refusal_is_told_in_the_words_of_the_server(serve, body, shown):
    assert post(serve((401, {}, body))).detail.endswith(shown)


@pytest.mark.parametrize("compression", list(Compression))
def test_the_halves_of_a_refused_body_hold_all_its_spans(serve, compression):
    server = serve((413, {}, b""), (413, {}, b""))
    trail = background_trail(server.url, compression=compression)
    for step in range(7):
        trail.step(step, now_ns(), now_ns(), [])
    assert trail.flush(20)
    trail.shutdown()
    bodies = [decompressor(compression)(body) for _, body in server.posts]
    assert [len(parse_spans(body)) for body in bodies] == [7, 3, 4, 1, 2]
    taken = [span for body in bodies[2:] for span in parse_spans(body)]
    assert sorted(span.attributes["tokentrail.step"] for span in taken) == list(range(7))
    assert len({span.resource["service.name"] for span in taken}) == 1
    assert trail.stats.exported == 7


def test_a_redirect_is_not_followed_but_named(serve):
    server = serve((307, {"Location": "https://otel.example/v1/traces"}, b""))
    outcome = post(server)
    assert outcome.status is SendStatus.REFUSED
    assert "https://otel.example/v1/traces" in outcome.detail
    assert len(server.posts) == 1


def test_partial_success_is_told(serve):
    answer = ExportTraceServiceResponse(partial_success={"rejected_spans": 3, "error_message": "too old"})
    outcome = post(serve((200, PROTOBUF, answer.SerializeToString())))
    assert (outcome.status, outcome.rejected, outcome.detail) == (SendStatus.DELIVERED, 3, "too old")


def test_success_that_is_not_otlp(serve):
    server = serve((200, PROTOBUF, b"\xff\xff\xff garbage"), (200, {"Content-Type": "text/html"}, b"<html>Welcome"))
    taken, page = post(server), post(server)
    assert taken.status is SendStatus.DELIVERED
    assert "not an OTLP answer" in taken.detail
    assert page.status is SendStatus.REFUSED
    assert "Welcome" in page.detail


@pytest.mark.parametrize(
    "answer", ["close", b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc"]
)
def test_a_broken_answer_is_tried_again(serve, answer):
    assert post(serve(answer)).status is SendStatus.RETRY


def test_the_port_of_grpc_is_named_as_such(serve):
    settings_frame = b"\x00\x00\x18\x04\x00\x00\x00\x00\x00\x00\x04\x00@\x00\x00\r\n"
    outcome = post(serve(settings_frame))
    assert outcome.status is SendStatus.RETRY
    assert outcome.detail.endswith("port 4318; 4317 needs OTEL_EXPORTER_OTLP_PROTOCOL=grpc")


def test_a_server_that_hangs_is_tried_again_after_the_timeout(serve):
    assert post(serve("hang"), timeout_s=0.05).status is SendStatus.RETRY


def drips(*pieces, pause_s=0.05):
    """A server that reads a request and then sends a piece now and then, again and again; its URL."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        connection, _ = listener.accept()
        with listener, connection, contextlib.suppress(OSError):
            connection.recv(65536)
            for piece in itertools.chain(pieces[:-1], itertools.repeat(pieces[-1])):
                connection.sendall(piece)
                time.sleep(pause_s)

    threading.Thread(target=serve, daemon=True).start()
    return f"http://127.0.0.1:{listener.getsockname()[1]}/v1/traces"


@pytest.mark.parametrize(
    "pieces",
    [
        [b"HTTP/1.1 200 OK\r\n", b"X: 1\r\n", b"x"],
        [b"H"],
        [b"HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n", b"x"],
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"],
        [b"HTTP/1.1 503 No\r\n\r\n", b"x"],
    ],
    ids=["header", "status", "body", "chunks", "until it is closed"],
)
def test_an_answer_that_drips_is_given_up_after_the_timeout(pieces):
    answer = OtlpHttp(Endpoint(drips(*pieces), PROTOBUF, 0.5))(b"body")
    assert answer.status is SendStatus.RETRY
    assert "timed out" in answer.detail


@pytest.mark.parametrize("name", ["authorization", "Authorization", "x-api-key"])
def test_passwords_of_netrc_go_nowhere(serve, tmp_path, monkeypatch, name):
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login other password secret\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    server = serve()
    OtlpHttp(Endpoint(server.url, PROTOBUF | {name: "Bearer ours"}, 5.0))(b"body")
    [(headers, _)] = server.posts
    found = {key.lower(): value for key, value in headers.items()}
    assert found[name.lower()] == "Bearer ours"
    assert found.get("authorization", "Bearer ours") == "Bearer ours"


def test_a_header_goes_before_the_password_of_the_url(serve):
    server = serve()
    url = server.url.replace("//", "//user:password@")
    OtlpHttp(Endpoint(url, PROTOBUF, 5.0))(b"body")
    OtlpHttp(Endpoint(url, PROTOBUF | {"Authorization": "Bearer ours"}, 5.0))(b"body")
    assert [headers["Authorization"] for headers, _ in server.posts] == ["Basic dXNlcjpwYXNzd29yZA==", "Bearer ours"]


def test_nobody_listening_is_tried_again_and_a_bad_url_is_not():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{taken.getsockname()[1]}/v1/traces"
        assert OtlpHttp(Endpoint(nobody, {}))(b"").status is SendStatus.RETRY
    outcome = OtlpHttp(Endpoint("not a url", {}))(b"")
    assert outcome.status is SendStatus.REFUSED
    assert "not a url" in outcome.detail


@pytest.mark.parametrize("url", ["localhost:4318/v1/traces", "localhost/v1/traces"])
def test_an_address_without_a_scheme_says_what_it_lacks(url):
    outcome = OtlpHttp(Endpoint(url, {}))(b"")
    assert outcome.status is SendStatus.REFUSED
    assert outcome.detail == f"{url} cannot be posted to: write http:// or https:// before the host"


@pytest.fixture
def sent(monkeypatch):
    """How `requests` was told to send, and whether instrumentations were to pass the call over."""
    calls = []

    def send(adapter, request, **how):
        calls.append(how | {"suppressed": get_value(_SUPPRESS_INSTRUMENTATION_KEY)})
        raise requests.ConnectionError

    monkeypatch.setattr(requests.adapters.HTTPAdapter, "send", send)
    return calls


def test_a_ca_file_of_its_own_goes_before_that_of_requests(sent, monkeypatch):
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/everybodys.pem")
    endpoint = Endpoint.to("https://c.example", certificate="/ours.pem", client_certificate="/client.pem")
    OtlpHttp(endpoint)(b"")
    OtlpHttp(Endpoint.to("https://c.example"))(b"")
    assert [call["verify"] for call in sent] == ["/ours.pem", "/everybodys.pem"]
    assert [call["cert"] for call in sent] == ["/client.pem", None]


def test_the_export_is_not_traced_by_instrumentations(sent):
    post_to_nobody = OtlpHttp(Endpoint.to("http://c.example"))
    assert post_to_nobody(b"").status is SendStatus.RETRY
    assert [call["suppressed"] for call in sent] == [True]
    assert get_value(_SUPPRESS_INSTRUMENTATION_KEY) is None


def test_a_process_keeps_its_connection_and_a_forked_child_makes_its_own(monkeypatch):
    post = OtlpHttp(Endpoint.to("http://c.example"))
    of_parent = post._connected()
    assert post._connected() is of_parent
    monkeypatch.setattr("os.getpid", lambda: 1)
    of_child = post._connected()
    assert of_child is not of_parent
    assert post._connected() is of_child


def test_a_tls_file_that_is_missing_is_told_at_start_and_waited_for(caplog):
    endpoint = Endpoint.to("https://127.0.0.1:9", certificate="/no/ca.pem", client_key="/no/key.pem")
    Trail(Settings(endpoint), background=False)
    assert "OTEL_EXPORTER_OTLP_CERTIFICATE=/no/ca.pem: no such file" in caplog.text
    outcome = OtlpHttp(endpoint)(b"")
    assert outcome.status is SendStatus.RETRY
    assert "/no/ca.pem" in outcome.detail


def test_a_trail_without_environment_variables(serve, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    server = serve()
    address = server.url.removesuffix("/v1/traces")
    trail = Trail(endpoint=address, headers={"authorization": "Bearer x"}, service_name="mine", variant="int8")
    trail.step(0, T0, T0, [])
    assert trail.shutdown(120)
    ((headers, body),) = server.posts
    assert headers["authorization"] == "Bearer x"
    assert headers["content-type"] == "application/x-protobuf"
    (step,) = parse_spans(body)
    assert (step.resource["service.name"], step.resource["tokentrail.variant"]) == ("mine", "int8")


def test_threads_deliver_through_trouble_what_was_recorded_once(serve):
    server = serve((503, {"Retry-After": "0"}, b""), "close")
    trail = background_trail(server.url)
    request = start(trail)
    for step in range(50):
        trail.step(step, T0, T0 + step * MS, [request])
    request.end(T0 + 49 * MS)
    assert trail.flush(20)
    assert trail.shutdown()
    assert server.posts[0][1] == server.posts[1][1] == server.posts[2][1]  # same bytes on every attempt
    taken = {body for _, body in server.posts}
    spans = [span for body in taken for span in parse_spans(body)]
    assert len(spans) == trail.stats.exported == trail.stats.accepted
    assert sum(span.name == "tokentrail.token" for span in spans) == 50


def test_a_retry_wait_does_not_hold_up_the_shutdown(serve):
    server = serve((503, {"Retry-After": "300"}, b""))
    trail = background_trail(server.url)
    trail.step(0, T0, T0, [])
    assert trail.flush(0.2) is False
    assert trail.shutdown(120) is True  # the wait is cut short, the collector is back
    assert trail.stats.exported == 1


def test_a_hanging_collector_does_not_hold_up_the_shutdown(serve, caplog):
    trail = background_trail(serve("hang").url, timeout_s=30)
    trail.step(0, T0, T0, [])
    begun = time.monotonic()
    assert trail.shutdown(0.1) is False
    assert time.monotonic() - begun < 25  # an attempt takes 30 s
    assert trail.stats.drops == {"shutdown": 1}
    assert "ends without 1 spans" in caplog.text, "nobody reads the counts of a process that has ended"


@pytest.mark.parametrize(
    ("compression", "decode"), [(Compression.Gzip, gzip.decompress), (Compression.Deflate, zlib.decompress)]
)
def test_compression(serve, compression, decode):
    server = serve()
    trail = background_trail(server.url, compression=compression)
    trail.step(0, T0, T0, [])
    assert trail.flush(120)
    trail.shutdown()
    assert [span.name for span in parse_spans(decode(server.posts[0][1]))] == ["tokentrail.step"]


def test_trouble_is_logged_once_a_minute(serve, caplog):
    server = serve(*[(503, {"Retry-After": "0"}, b"maintenance")] * 5)
    trail = background_trail(server.url)
    with caplog.at_level(logging.WARNING, "tokentrail"):
        trail.step(0, now_ns(), now_ns(), [])
        assert trail.flush(20)
    trail.shutdown()
    (message,) = [record.message for record in caplog.records if record.name == "tokentrail"]
    assert all(part in message for part in ("503", server.url, "maintenance"))


def test_a_password_of_the_endpoint_is_not_logged(server):
    url = server.url.replace("http://", "http://user:secret@")
    server.script += [(503, {}, b"busy"), (400, {}, b"bad")]
    for status in (SendStatus.RETRY, SendStatus.REFUSED):
        result = OtlpHttp(Endpoint(url, PROTOBUF))(b"body")
        assert (result.status, "http://…@127.0.0.1" in result.detail) == (status, True)
        assert "secret" not in result.detail
    nobody = OtlpHttp(Endpoint("http://user:secret@127.0.0.1:9/v1/traces", PROTOBUF))(b"body")
    assert (nobody.status, "secret" in nobody.detail) == (SendStatus.RETRY, False)
    assert server.posts[0][0]["Authorization"].startswith("Basic "), "and it is sent"


@pytest.mark.parametrize("address", ["user:secret@127.0.0.1:99999", "user:secret@", "user:secret#x@collector:4318"])
def test_a_password_is_not_in_the_words_about_an_address_that_is_no_url(address):
    result = OtlpHttp(Endpoint(f"http://{address}/v1/traces", PROTOBUF))(b"body")
    assert (result.status, "secret" in result.detail) == (SendStatus.REFUSED, False)
    assert "cannot be posted to: encode the characters of the password" in result.detail
