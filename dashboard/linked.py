"""Links with a line in place of parameters: `/explore?q=tenant:globex ttft>2s` leads to the address of what it says."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode

from starlette.types import ASGIApp, Receive, Scope, Send

from dashboard import links
from tokentrail.shared import query


class LinkedLines:
    """Middleware: a link with a line leads to the address of what it says. One with a wrong word shows it on the page.

    A page cannot do it: the way back would lead to the line again.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        found = _expanded(scope) if scope["type"] == "http" else None
        if found is None:
            await self._app(scope, receive, send)
            return
        headers = [(b"location", f"?{found}".encode()), (b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 307, "headers": headers})
        await send({"type": "http.response.body", "body": b""})


def _expanded(scope: Scope) -> str | None:
    """The query string of what the line of a link says; None without one, and for a wrong one."""
    pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    lines = [value for name, value in pairs if name == links.LINE]
    page = scope["path"].rpartition("/")[2]
    if not lines or page not in ("", *links.READS):
        return None
    try:
        params = query.parse(lines[0], links.takes(page))
    except query.WrongWord:
        return None
    return urlencode([*((name, value) for name, value in pairs if name != links.LINE), *links.in_url(params)])
