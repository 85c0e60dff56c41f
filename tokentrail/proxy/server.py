"""Starts and stops the proxy: its two listeners, its pool of upstream connections, and its trail."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import sys
from collections.abc import Callable
from functools import partial

import aiohttp
from aiohttp import web
from aiohttp.http import HttpProcessingError
from aiohttp.typedefs import Handler

from tokentrail import Trail, semconv
from tokentrail.proxy.counters import Counters
from tokentrail.proxy.problems import Connection
from tokentrail.proxy.relay import Relay, leave_out_added
from tokentrail.proxy.settings import ProxySettings, address
from tokentrail.shared import open_files
from tokentrail.shared.hosts import REFUSED, allowed_names, refusal

logger = logging.getLogger(__name__)

KEEPALIVE_S = 4.0
"""Idle upstream connections are closed after it. uvicorn, which most engines use, closes its own after 5 s, and a
request that meets such an end would fail."""
IDLE_S = 75.0
"""A client's connection is closed when it has no whole header for so long. aiohttp would wait an hour."""
MAX_FIELD_BYTES = 64 << 10
"""The longest line of a header, of a request and of an answer. uvicorn takes as much."""
CUT_S = 0.1
"""Time for the requests that are cut off when the time to drain is over."""
OTHER_FILES = 64
"""Files that are no connections of requests."""
SWITCH_INTERVAL_S = 0.0005
"""The SDK's threads give the interpreter back to the event loop after this time, in place of 5 ms."""


class Proxy:
    """A proxy in the running event loop. `url` and `admin_url` are its addresses once it has started."""

    def __init__(self, settings: ProxySettings, trail: Trail | None = None) -> None:
        self._settings = settings
        self.trail = trail or Trail.from_env(
            service_name="tokentrail-proxy", resource={semconv.ENGINE: settings.engine_name}
        )
        self._counters = Counters(self.trail)
        self._http_log = logging.Logger("tokentrail.proxy.http")
        self._http_log.parent = logger
        self._http_log.addFilter(_may_be_logged)
        self._listening: list[tuple[asyncio.Server, web.AppRunner]] = []
        self._session: aiohttp.ClientSession | None = None
        self._relay: Relay | None = None
        self._draining = False
        self.url = self.admin_url = ""

    async def start(self) -> None:
        """Listens. Raises `OSError` when an address is in use."""
        settings = self._settings
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S),
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=settings.connect_timeout_s, sock_read=settings.read_timeout_s
            ),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            max_field_size=MAX_FIELD_BYTES,
        )
        self._relay = Relay(settings, self.trail, self._session, self._counters)
        app = web.Application(client_max_size=settings.max_body_mib << 20)
        app.router.add_route("*", r"/{path:[\s\S]*}", self._relay.handle)
        app.on_response_prepare.append(leave_out_added)
        self.url = await self._listen(app, settings.listen, lambda reason: self._counters.refused.labels(reason).inc())
        names = allowed_names(address(settings.admin, "address")[0])

        @web.middleware
        async def by_its_name(request: web.Request, handler: Handler) -> web.StreamResponse:
            why = refusal(request.headers.getall("Host", ()), names)
            return await handler(request) if why is None else web.Response(text=f"{why}\n", status=REFUSED)

        admin = web.Application(middlewares=[by_its_name])
        admin.router.add_get("/metrics", self._metrics)
        admin.router.add_get("/healthz", self._healthy)
        admin.router.add_get("/readyz", self._ready)
        self.admin_url = await self._listen(admin, settings.admin, lambda _: None)

    async def stop(self) -> bool:
        """Takes no new connections, and gives the requests under way `drain_timeout_s` to end. False when some had to
        be cut, or when not all spans could be sent.
        """
        self._draining = True
        for listener, runner in self._listening[:1]:
            listener.close()
            if self._relay is not None:
                await self._relay.drain(self._settings.drain_timeout_s)
            await runner.cleanup()
        if self._session is not None:
            await self._session.close()
        sent = await asyncio.to_thread(self.trail.shutdown)
        for listener, runner in self._listening[1:]:
            listener.close()
            await runner.cleanup()
        return sent and not (self._relay and self._relay.cut)

    async def _listen(self, app: web.Application, listen: str, refused: Callable[[str], object]) -> str:
        host, port = address(listen, "address")
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=CUT_S)
        await runner.setup()
        server = runner.server
        assert server is not None
        connection = partial(
            Connection, server, refused=refused, access_log=None, auto_decompress=False,
            keepalive_timeout=IDLE_S, max_field_size=MAX_FIELD_BYTES, logger=self._http_log,
        )  # fmt: skip
        listener = await asyncio.get_running_loop().create_server(connection, host, port, backlog=1024)
        self._listening.append((listener, runner))
        host, port = listener.sockets[0].getsockname()[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self._counters.page(), content_type="text/plain", charset="utf-8")

    async def _healthy(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _ready(self, _: web.Request) -> web.Response:
        return web.Response(text="draining\n", status=503) if self._draining else web.Response(text="ready\n")


def run(settings: ProxySettings) -> bool:
    """Serves until SIGINT or SIGTERM, and then drains. False when requests had to be cut or spans were lost."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    open_files.allow(2 * settings.max_requests + OTHER_FILES)
    try:
        import uvloop
    except ImportError:  # not there for every platform; asyncio's own loop does the same at twice the cost
        return asyncio.run(_serve(settings))
    return uvloop.run(_serve(settings))


async def _serve(settings: ProxySettings) -> bool:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    proxy = Proxy(settings)
    try:
        await proxy.start()
    except OSError:
        await proxy.stop()
        raise
    gc.collect()
    gc.freeze()  # the objects made so far stay; looking at them took each full collection 10 ms and more
    logger.info("%s passes requests to %s; metrics at %s", proxy.url, settings.upstream, proxy.admin_url)
    await stop.wait()
    logger.info("draining for at most %g s", settings.drain_timeout_s)
    return await proxy.stop()


def _may_be_logged(record: logging.LogRecord) -> bool:
    """Leaves out a request that is no HTTP: aiohttp logs its bytes, in which keys and prompts are."""
    return record.exc_info is None or not isinstance(record.exc_info[1], HttpProcessingError)
