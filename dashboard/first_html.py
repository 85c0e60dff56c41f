"""The place of a page stands in the HTML that the browser loads first, so that nothing moves when the page comes."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

STYLE = b"""<style>
body [data-testid="stMainBlockContainer"] {padding: 4.4rem 2.5rem 3rem; max-width: 1680px}
@media (max-width: 640px) {body [data-testid="stMainBlockContainer"] {padding: 4.2rem 1rem 2rem}}
[data-testid="stMainBlockContainer"] > * > :first-child:has(> [data-testid="stSkeleton"]) {position: absolute}
.st-key-header {min-height: 37px}
@media (max-width: 640px) {.st-key-header {min-height: 123px} .st-key-of, .st-key-latency {min-height: 64px}}
</style></head>"""
"""The absolute place is that of the spinner of dashboard/pages.py while its script is loaded: it takes no room."""
_NOT_ASKED = (b"if-none-match", b"if-modified-since", b"if-range", b"range", b"accept-encoding")
"""The whole text is needed, and its age is that of Streamlit: a browser would keep the style of another version."""


class FirstHtml:
    """Middleware that puts `STYLE` into the HTML of pages. Other answers pass as they are."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http" or scope["method"] != "GET" or "." in scope["path"].rpartition("/")[2]:
            await self._app(scope, receive, send)
            return
        headers = [pair for pair in scope["headers"] if pair[0] not in _NOT_ASKED]
        await self._app({**scope, "headers": headers}, receive, _Styled(send))


class _Styled:
    """What sends an answer; HTML is held until it is whole."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._start: Message | None = None
        self._body = b""

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start" and _is_html(message):
            self._start = message
        elif self._start is None or message["type"] != "http.response.body":
            await self._send(message)
        else:
            self._body += message.get("body", b"")
            if not message.get("more_body"):
                await self._finish(self._start)

    async def _finish(self, start: Message) -> None:
        body = self._body.replace(b"</head>", STYLE, 1)
        kept = [pair for pair in start["headers"] if pair[0].lower() not in (b"content-length", b"etag")]
        await self._send({**start, "headers": [*kept, (b"content-length", str(len(body)).encode())]})
        await self._send({"type": "http.response.body", "body": body})


def _is_html(start: Message) -> bool:
    headers = {name.lower(): value for name, value in start["headers"]}
    return headers.get(b"content-type", b"").startswith(b"text/html") and b"content-encoding" not in headers
