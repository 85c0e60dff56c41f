"""The dashboard's API client turns answers into objects and failures into Problems, over real HTTP."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import httpx
import pytest

from dashboard import api
from dashboard.api import OFFER_TIMEOUT_S, TIMEOUT_S, Problem, answer, ask, fetch
from dashboard.filters import offered_filters, offered_slos


@contextmanager
def answering(status, body):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with httpx.Client(base_url=f"http://user:secret@127.0.0.1:{server.server_port}/api/v1/", trust_env=False) as client:
        yield client
    server.shutdown()
    server.server_close()


def test_an_object_is_the_answer():
    with answering(200, b'{"slos": []}') as client:
        assert answer(client, ask("slos")) == {"slos": []}


@pytest.mark.parametrize(
    ("status", "body", "title", "detail"),
    [
        (200, b"<html>", "This is not the collector's API", "not in JSON"),
        (200, b"[1]", "This is not the collector's API", "not answer with an object"),
        (200, b"", "This is not the collector's API", "not answer with an object"),
        (200, b"{}", "This is not the collector's API", "not answer with an object"),
        (502, b"[]", "HTTP 502", "no reason"),
        (502, b"<html>", "The collector cannot be reached", "answers 502 without a reason"),
        (504, b"", "The collector cannot be reached", "answers 504 without a reason"),
        (403, b"<html>", "This is not the collector's API", "not in JSON"),
        (422, b'{"title": "Bad parameters", "detail": "see errors", "errors": [{"field": "start", "detail": "what?"}]}',
         "Bad parameters", "start: what?"),
        (401, b'{"title": "Unauthorized", "detail": "x"}', "The collector asks for a key", "TOKENTRAIL_API_KEY"),
        (404, b'{"title": "No such SLO", "detail": "x"}', "No such SLO", "x"),
    ],
)  # fmt: skip
def test_anything_else_is_a_problem_in_words(status, body, title, detail):
    with answering(status, body) as client:
        found = answer(client, ask("summary"))
    assert isinstance(found, Problem)
    assert found.title == title
    assert detail in found.detail
    assert "secret" not in found.detail


@pytest.mark.parametrize(
    ("key", "title"),
    [
        ("", "The collector asks for a key"),
        (" ", "The collector asks for a key"),
        ("tokentrail_x", "The collector does not know the key"),
    ],
)
def test_a_wrong_key_is_told_apart_from_a_missing_one(key, title, monkeypatch):
    monkeypatch.setenv("TOKENTRAIL_API_KEY", key)
    with answering(401, b'{"title": "Unauthorized"}') as client:
        found = answer(client, ask("summary"))
    assert (found.title, "role read" in found.detail) == (title, True)
    assert "tokentrail_x" not in found.detail


def test_nobody_there_is_a_problem_that_says_where():
    with answering(200, b"") as client:
        url = client.base_url
    with httpx.Client(base_url=url, trust_env=False) as client:
        found = answer(client, ask("summary"))
    assert isinstance(found, Problem)
    assert found.title == "The collector cannot be reached"
    assert f"127.0.0.1:{url.port}" in found.detail
    assert found.detail.endswith(" Start it with tokentrail up, or set TOKENTRAIL_API_URL to its address.")
    assert "secret" not in found.detail


@pytest.mark.parametrize(
    ("url", "error", "way_out"),
    [
        ("https://c/", httpx.ConnectError("CERTIFICATE_VERIFY_FAILED"), "Set TOKENTRAIL_API_TLS_CA to the CA"),
        ("http://c/", httpx.ReadError(""), "If the collector speaks TLS, write https://; else another"),
    ],
)
def test_the_way_out_is_that_of_the_error_where_it_has_one(url, error, way_out):
    def fail(request):
        error.request = request
        raise error

    with httpx.Client(base_url=url, transport=httpx.MockTransport(fail)) as client:
        found = answer(client, ask("summary"))
    assert found.title == "The collector cannot be reached"
    assert f"). {way_out}" in found.detail
    assert "tokentrail up" not in found.detail


def test_the_page_waits_once_and_not_long_for_the_lists_of_its_filters(monkeypatch):
    asked = []

    def hang(request):
        asked.append((request.url.path, request.extensions["timeout"]["read"]))
        raise httpx.ReadTimeout("nothing came", request=request)

    with httpx.Client(base_url="http://hangs/api/v1/", transport=httpx.MockTransport(hang)) as client:
        monkeypatch.setattr("dashboard.api._client", lambda *_: client)
        names, is_there = offered_slos()
        assert (names, is_there) == ([], False)
        assert offered_filters("-15m", "now", is_there=is_there) == {}
        assert asked == [("/api/v1/slos", OFFER_TIMEOUT_S)]
        found = fetch(ask("verdict"))
        assert (found.title, asked[1:]) == ("The collector is too slow", [("/api/v1/verdict", TIMEOUT_S)])


def test_parameters_are_the_pages_and_the_questions_own():
    assert ask("timeseries", (("start", "-15m"),), metric="ttft", slo=None).params == (
        ("start", "-15m"),
        ("metric", "ttft"),
    )


def test_questions_that_are_asked_ahead_are_asked_at_once_and_fetched_without_another(monkeypatch):
    both, asked = threading.Barrier(2, timeout=60), []

    def answered(base, key, query, timeout_s):
        asked.append(query.path)
        both.wait()
        return {"path": query.path}

    monkeypatch.setattr(api, "_asked", answered)
    api.forget()
    queries = [ask("verdict"), ask("heatmap")]
    api.ask_ahead(*queries)
    assert [fetch(query) for query in queries] == [{"path": "verdict"}, {"path": "heatmap"}]
    assert sorted(asked) == ["heatmap", "verdict"]
    api.forget()
