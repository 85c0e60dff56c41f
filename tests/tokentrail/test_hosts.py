"""The names by which a server may be called, and the middleware that asks for them."""

import asyncio

import pytest

from tokentrail.shared.hosts import AllowedHosts, allowed_names, foreign_page, host_name, is_allowed, names_in


@pytest.mark.parametrize(
    ("host", "name"), [("A.b:80", "a.b"), ("[::1]:80", "::1"), ("[::1]", "::1"), ("x", "x"), ("x.", "x"), ("", "")]
)
def test_host_names(host, name):
    assert host_name(host) == name


@pytest.mark.parametrize(
    ("host", "names", "allowed"),
    [
        ("localhost:8501", "", True), ("a.localhost", "", True), ("127.0.0.1:8501", "", True), ("[::1]:1", "", True),
        ("10.0.0.7", "", True), ("evil.example", "", False), ("", "", False), ("localhost.evil.example", "", False),
        ("127.0.0.1.evil.example", "", False), ("slo.example:443", "slo.example", True),
        ("SLO.example.", "slo.example", True), ("x.slo.example", "slo.example", False), ("evil.example", "*", True),
    ],
)  # fmt: skip
def test_what_is_allowed(host, names, allowed):
    assert is_allowed(host, names_in(names)) is allowed


def test_names_come_from_the_environment_and_from_the_server(monkeypatch):
    monkeypatch.setenv("TOKENTRAIL_ALLOWED_HOSTS", " A.example,b.example,, ")
    assert allowed_names("", "own") == {"a.example", "b.example", "own"}


def asked(kind, *hosts):
    """The messages that a server under the middleware sends, and whether the application was reached."""
    sent, reached = [], []

    async def app(scope, receive, send):
        reached.append(scope["type"])

    async def receive():
        return {"type": "websocket.connect"}

    async def send(message):
        sent.append(message)

    scope = {"type": kind, "headers": [(b"host", host) for host in hosts]}
    asyncio.run(AllowedHosts(app, names_in("slo.example"))(scope, receive, send))
    return sent, reached


def test_another_name_gets_no_answer_of_the_application():
    for kind in ("http", "websocket"):
        assert asked(kind, b"slo.example") == ([], [kind])
    ([start, body], reached) = asked("http", b"evil.example")
    assert (start["status"], reached) == (421, [])
    assert b"TOKENTRAIL_ALLOWED_HOSTS" in body["body"]
    ([closed], reached) = asked("websocket", b"evil.example")
    assert (closed["type"], closed["code"], reached) == ("websocket.close", 1008, [])
    ([start, body], reached) = asked("http", b"127.0.0.1", b"evil.example")
    assert (start["status"], reached) == (421, [])
    assert body["body"] == b"the request has the header Host 2 times; send it once\n"
    assert asked("lifespan") == ([], ["lifespan"])


@pytest.mark.parametrize(
    ("headers", "foreign"),
    [
        ({}, False), ({b"host": b"a:1"}, False),
        ({b"sec-fetch-site": b"same-origin", b"origin": b"http://b"}, False), ({b"sec-fetch-site": b"none"}, False),
        ({b"sec-fetch-site": b"same-site"}, True), ({b"sec-fetch-site": b"cross-site"}, True),
        ({b"sec-fetch-site": b"cross-site", b"origin": b"http://a:1", b"host": b"a:1"}, True),
        ({b"origin": b"http://A:1", b"host": b"a:1"}, False), ({b"origin": b"http://a:2", b"host": b"a:1"}, True),
        ({b"origin": b"null", b"host": b"a:1"}, True), ({b"origin": b"", b"host": b""}, True),
    ],
)  # fmt: skip
def test_who_asks_for_a_change(headers, foreign):
    assert (foreign_page([*headers.items()]) is not None) is foreign
