"""The names by which a server may be called: a web page that rebinds its own name to this machine's address is refused.

A browser lets a page read what comes from the page's own host. So a page may point its name to 127.0.0.1, and then read
every server here that asks for no key. Such a request still has the page's name in its header `Host`.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any, Final

VARIABLE: Final = "TOKENTRAIL_ALLOWED_HOSTS"
"""More names, divided by commas, under which browsers may ask, beside loopback names and IP addresses; `*` allows all.
"""
REFUSED: Final = 421
"""The status of a request under a wrong name: Misdirected Request."""


FOREIGN: Final = 403
READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
"""The methods that change nothing."""


def host_name(host: str) -> str:
    """Return a Host header without its port: `A.b:80` is `a.b`, `[::1]:80` is `::1`."""
    name = host.partition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]
    return name.lower().rstrip(".")


def is_loopback(host: str) -> bool:
    """Tell whether a host name or address can only be this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def is_allowed(host: str, names: Collection[str]) -> bool:
    """Whether a Host header names this machine, an address, or one of `names`, which are in lower case."""
    name = host_name(host)
    return is_loopback(name) or _is_address(name) or name in names or "*" in names


def names_in(*lists: str) -> frozenset[str]:
    """The names of texts with commas, in lower case: `A, b` is {a, b}."""
    return frozenset(name for text in lists for part in text.split(",") if (name := part.strip().lower()))


def allowed_names(*server_names: str) -> frozenset[str]:
    """The names of the environment, and a server's own."""
    return names_in(os.environ.get(VARIABLE, ""), *server_names)


def refusal(hosts: Collection[str], names: Collection[str]) -> str | None:
    """Why a request with these Host headers is refused; None for one that is let in. HTTP/1.0 has no such header."""
    if len(hosts) > 1:
        return f"the request has the header Host {len(hosts)} times; send it once"
    for host in hosts:
        if not is_allowed(host, names):
            return f"the host {host[:100]!r} is not one of this server's; {VARIABLE} allows more"
    return None


def foreign_page(headers: Collection[tuple[bytes, bytes]]) -> str | None:
    """Why a change is refused that a page of another origin asks for; None for the server's own pages and for programs.

    `headers` have lower-case names. A browser sends such a POST without asking the server first. It says so in
    `Sec-Fetch-Site` (https://www.w3.org/TR/fetch-metadata/), and older ones in `Origin`.
    """
    of_request = {name: value.decode("latin-1") for name, value in headers}
    site, origin = of_request.get(b"sec-fetch-site"), of_request.get(b"origin")
    if site is None and origin is None:
        return None
    if site is None and origin is not None:
        host = of_request.get(b"host", "").lower()
        site = "same-origin" if host and origin.lower().partition("://")[2] == host else "cross-site"
    return (
        None if site in ("same-origin", "none") else f"a page of another origin ({(origin or site or '')[:100]}) asks"
    )


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class AllowedHosts:
    """ASGI middleware: HTTP under another name than `names` is answered 421, and a WebSocket is closed. What a page of
    another origin wants to change is answered 403.
    """

    def __init__(self, app: App, names: Collection[str]) -> None:
        self._app = app
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        hosts = [value.decode("latin-1") for name, value in scope.get("headers", ()) if name == b"host"]
        why, status = refusal(hosts, self._names), REFUSED
        if why is None and scope.get("method", "GET") not in READING:
            why, status = foreign_page(scope["headers"]), FOREIGN
        if why is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()  # the offer of a connection comes first
            await send({"type": "websocket.close", "code": 1008, "reason": why[:100]})
        else:
            headers = [(b"content-type", b"text/plain; charset=utf-8")]
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": why.encode(errors="replace") + b"\n"})
