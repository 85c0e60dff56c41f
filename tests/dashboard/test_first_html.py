"""The style in the HTML that a browser loads first."""

import asyncio

import pytest

from dashboard.first_html import STYLE, FirstHtml

HTML = [(b"Content-Type", b"text/html; charset=utf-8"), (b"content-length", b"34"), (b"etag", b"x")]
PARTS = [b"<html><head><title>a</ti", b"tle></head></html>"]


def answered(headers, *, path="/explore", method="GET"):
    sent, asked = [], []

    async def app(scope, receive, send):
        asked.append(scope)
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for i, part in enumerate(PARTS):
            await send({"type": "http.response.body", "body": part, "more_body": i + 1 < len(PARTS)})

    async def send(message):
        sent.append(message)

    given = [(b"if-none-match", b"x"), (b"accept-encoding", b"gzip"), (b"host", b"a")]
    scope = {"type": "http", "method": method, "path": path, "headers": given}
    asyncio.run(FirstHtml(app)(scope, None, send))
    start, *bodies = sent
    return dict(start["headers"]), b"".join(one["body"] for one in bodies), asked[0]["headers"]


def test_the_html_of_a_page_has_the_style_once_and_is_never_an_old_one():
    headers, body, asked = answered(HTML)
    assert body == b"<html><head><title>a</title>" + STYLE + b"</html>"
    assert headers == {b"Content-Type": HTML[0][1], b"content-length": str(len(body)).encode()}
    assert asked == [(b"host", b"a")]


@pytest.mark.parametrize(
    ("headers", "more"),
    [
        ([(b"content-type", b"text/css")], {}),
        ([*HTML, (b"content-encoding", b"gzip")], {}),
        (HTML, {"path": "/static/index.js"}),
        (HTML, {"method": "HEAD"}),
    ],
)
def test_other_answers_pass_as_they_are(headers, more):
    assert answered(headers, **more)[:2] == (dict(headers), b"".join(PARTS))
