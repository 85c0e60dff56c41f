"""The way of one request through the proxy: to the upstream, and its answer back to the client, chunk by chunk."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final, Protocol

import aiohttp
from aiohttp import HttpVersion11, web
from opentelemetry.trace import SpanKind
from yarl import URL

from tokentrail import Status, Trail, now_ns, semconv
from tokentrail.clients.recording import Recording
from tokentrail.proxy.asked import Api, Asked, api_of, read
from tokentrail.proxy.counters import Counters
from tokentrail.proxy.flushes import Flushes
from tokentrail.proxy.headers import ask_readable, end_to_end, label, unread_codings
from tokentrail.proxy.problems import BROKEN, problem
from tokentrail.proxy.settings import ProxySettings
from tokentrail.proxy.tap import Tap
from tokentrail.proxy.uploads import PIECE, Bodies, TooManyBytes, Upload

UNREACHABLE: Final = "upstream_unreachable"
TIMEOUT: Final = "upstream_timeout"
DISCONNECTED: Final = "upstream_disconnected"
INCOMPLETE: Final = "upstream_incomplete"
"""The upstream ended its answer, and the answer had not said that it is over, or answered nothing."""
SHUTDOWN: Final = "proxy_shutdown"

NEVER_WAITS: Final = 32 << 10
"""A smaller chunk goes to an empty connection without waiting: aiohttp waits when 64 KiB lie there."""

_ADDED: Final = ("Content-Type", "Date", "Server")
"""Headers that aiohttp adds to an answer without them."""
_OWN_HEADERS: Final = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")
"""Headers that aiohttp adds to a request without them."""
_GIVEN: Final = web.RequestKey("given", frozenset)


class Outcome(Protocol):
    """Tells how a request ended: `Recording.end`, or nothing for one that is not recorded."""

    def __call__(self, at_ns: int | None = None, *, status: Status = ..., error_type: str = ...) -> None:
        """The request ended."""


class Relay:
    """Hands requests on. `cut` counts those that had not ended when the time to drain was over."""

    def __init__(
        self, settings: ProxySettings, trail: Trail, session: aiohttp.ClientSession, counters: Counters
    ) -> None:
        self._settings = settings
        self._trail = trail
        self._session = session
        self._counters = counters
        self._flushes = Flushes()
        self._base = settings.upstream.rstrip("/")
        self._bodies = Bodies(settings.max_body_mib << 20)
        self._under_way = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._draining = self._expired = False
        self.cut = 0

    async def drain(self, timeout_s: float) -> None:
        """Waits until no request is under way, or the time is over. Connections end with their next answer."""
        self._draining = True
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            self._expired = True

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Serves one request. A request of a recorded API becomes a request of the trail."""
        arrival_ns = now_ns()
        raw_path = request.rel_url.raw_path
        api = api_of(request.method, raw_path)
        if self._under_way >= self._settings.max_requests:
            return self._refuse(request, api, arrival_ns, 503, "too_many_requests", "The proxy is at --max-requests.")
        if coding := unread_codings(request.headers):
            detail = f"The body's transfer coding is {coding}; only chunked is read. Content-Encoding may name it."
            return self._refuse(request, api, arrival_ns, 501, BROKEN, detail)
        self._under_way += 1
        self._idle.clear()
        self._counters.in_flight.inc()
        try:
            if api is None:
                body = request.content if request.body_exists else None
                outcome = self._passed
                return await self._exchange(request, body, end_to_end(request.raw_headers, *_REPLACED), outcome, None)
            return await self._recorded(request, api, arrival_ns)
        finally:
            self._bodies.let_go(request)
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()
            self._counters.in_flight.dec()

    async def _recorded(self, request: web.Request, api: Api, arrival_ns: int) -> web.StreamResponse:
        try:
            async with asyncio.timeout(self._settings.read_timeout_s):
                body = await self._bodies.read(request)
        except TooManyBytes:
            detail = "The requests under way are large."
            return self._refuse(request, api, arrival_ns, 503, "too_many_bytes", detail)
        except web.HTTPRequestEntityTooLarge:
            return self._refuse(request, api, arrival_ns, 413, "body_too_large", "The request is over --max-body-mib.")
        except web.RequestPayloadError:
            return self._refuse(request, api, arrival_ns, 400, "broken_body", "The request's body is not whole.")
        except TimeoutError:
            return self._refuse(request, api, arrival_ns, 408, "slow_request", "The request did not arrive in time.")
        asked = read(api, body, ask_usage=self._settings.ask_usage)
        if asked.unread:
            self._counters.unread.labels(asked.unread).inc()
        recording = self._start(request, api, arrival_ns, asked)
        headers = end_to_end(request.raw_headers, *_REPLACED, "content-length")
        headers["Content-Length"] = str(len(asked.body))
        ask_readable(headers)
        if recording.request.trace_id:
            headers.popall("tracestate", None)
            recording.request.inject(headers)

        def ended(at_ns: int | None = None, *, status: Status = Status.OK, error_type: str = "") -> None:
            status = recording.end(at_ns, status=status, error_type=error_type)
            self._counters.requests.labels(api.operation, str(status)).inc()

        return await self._exchange(request, asked.body, headers, ended, recording)

    def _start(self, request: web.Request, api: Api, arrival_ns: int, asked: Asked) -> Recording:
        settings = self._settings
        headers = request.headers
        trail = self._trail.start_request(
            operation=api.operation,
            model=asked.model,
            provider=api.provider,
            carrier=headers,
            arrival_ns=arrival_ns,
            tenant=label(headers, settings.tenant_header, settings.tenant_salt),
            slo_class=label(headers, settings.class_header, settings.tenant_salt),
            labels={**asked.labels, **self._labels(headers)},
            attributes={**asked.attributes, semconv.SERVER_ADDRESS: settings.upstream_host},
            kind=SpanKind.CLIENT if settings.vantage == "client" else SpanKind.SERVER,
        )
        return Recording(trail, several=asked.several, batched=True)

    def _labels(self, headers: Mapping[str, str]) -> dict[str, str]:
        named = self._settings.label_headers
        return {name: label(headers, header, self._settings.tenant_salt) for name, header in named.items()}

    async def _exchange(
        self,
        request: web.Request,
        body: Any,
        headers: Any,
        ended: Outcome,
        recording: Recording | None,
    ) -> web.StreamResponse:
        timeout_s = self._settings.read_timeout_s
        limit = asyncio.timeout(self._settings.connect_timeout_s + timeout_s)
        is_small = body is None or (isinstance(body, bytes) and len(body) <= PIECE)
        sent = body if is_small else Upload(body, limit, timeout_s)
        try:
            async with limit:
                upstream = await self._session.request(
                    request.method,
                    URL(self._base + request.rel_url.raw_path_qs, encoded=True),
                    headers=headers,
                    data=sent,
                    skip_auto_headers=_OWN_HEADERS,
                    allow_redirects=False,
                )
        except asyncio.CancelledError:
            self._interrupted(ended)
            raise
        except TimeoutError:
            if isinstance(sent, Upload) and sent.waits_for_client:
                ended(error_type="408")
                return self._refuse(request, None, 0, 408, "slow_request", "The request did not arrive in time.")
            ended(error_type=TIMEOUT)
            return problem(504, TIMEOUT, "The upstream did not answer in time.")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            ended(error_type=UNREACHABLE)
            detail = f"The upstream could not be reached, or its answer is no HTTP ({type(error).__name__})."
            return problem(502, UNREACHABLE, detail)
        if upstream.status < 200:  # 101, for which the proxy never asks: what follows is no answer
            upstream.close()
            ended(error_type=UNREACHABLE)
            return problem(502, UNREACHABLE, "The upstream changed the protocol.")
        if coding := unread_codings(upstream.headers):
            upstream.close()
            ended(error_type=UNREACHABLE)
            return problem(502, UNREACHABLE, f"The answer's transfer coding is {coding}; only chunked is read.")
        tap = None
        if recording is not None:
            tap = Tap(
                recording,
                upstream.headers.get("Content-Type", ""),
                upstream.headers.get("Content-Encoding", "").lower(),
                lambda reason: self._counters.unread.labels(reason).inc(),
                self._counters.held.observe,
            )
        try:
            return await self._answer(request, upstream, ended, tap)
        finally:
            upstream.close()  # a no-op once it was read to its end

    async def _answer(
        self, request: web.Request, upstream: aiohttp.ClientResponse, ended: Outcome, tap: Tap | None
    ) -> web.StreamResponse:
        headers = end_to_end(upstream.raw_headers)
        request[_GIVEN] = frozenset(name.lower() for name in headers)
        response = web.StreamResponse(status=upstream.status, reason=upstream.reason, headers=headers)
        if self._draining or request.version < HttpVersion11:  # its end is the only end that HTTP/1.0 sees
            response.force_close()
        try:
            await response.prepare(request)
            async with asyncio.timeout(None) as limit:
                await self._relay(request, upstream, response, tap, limit)
            at_ns = now_ns()
            await response.write_eof()
        except asyncio.CancelledError:
            self._interrupted(ended, tap=tap)
            raise
        except _StalledClient:
            self._counters.refused.labels("slow_client").inc()
            ended(status=Status.CANCELLED)
            request.transport.abort()  # type: ignore[union-attr]  # it is there as long as the client is
            return response
        except ConnectionResetError:
            self._interrupted(ended, tap=tap)
            return response  # raised, aiohttp would log it as an error
        except TimeoutError:
            ended(error_type=TIMEOUT)
            return self._cut(request, response)
        except (aiohttp.ClientError, OSError):
            ended(error_type=DISCONNECTED)
            return self._cut(request, response)
        if tap is not None:
            tap.finish(at_ns)
        if upstream.status >= 300:  # a redirect is no answer either
            ended(at_ns, error_type=str(upstream.status))
        elif tap is not None and not tap.whole:
            ended(at_ns, error_type=INCOMPLETE)
        else:
            ended(at_ns)
        return response

    async def _relay(
        self,
        request: web.Request,
        upstream: aiohttp.ClientResponse,
        response: web.StreamResponse,
        tap: Tap | None,
        limit: asyncio.Timeout,
    ) -> None:
        """Each chunk is stamped, handed on, and then read. A client that does not read stops the reading here.

        `limit` is for the reading alone. aiohttp's own time-out does not end one behind a broken chunk.
        """
        transport = request.transport
        loop, timeout_s = asyncio.get_running_loop(), self._settings.read_timeout_s
        while True:
            limit.reschedule(loop.time() + timeout_s)
            chunk = await upstream.content.readany()
            if not chunk:
                return
            at_ns = now_ns()
            if len(chunk) < NEVER_WAITS and transport is not None and not transport.get_write_buffer_size():
                await response.write(chunk)  # the connection takes it at once, and a time-out would cost 4 µs
            else:
                limit.reschedule(None)
                await self._write(response, chunk)
            if tap is not None:
                tap.read(chunk, at_ns, now_ns())
                self._flushes.add(tap)

    async def _write(self, response: web.StreamResponse, chunk: bytes) -> None:
        try:
            async with asyncio.timeout(self._settings.write_timeout_s):
                await response.write(chunk)
        except TimeoutError:
            raise _StalledClient from None

    def _interrupted(self, ended: Outcome, *, tap: Tap | None = None) -> None:
        """The client went away, or the time to drain is over. A client may go once the answer has said that it is
        over.
        """
        if tap is not None and tap.over:
            ended(error_type="" if tap.whole else INCOMPLETE)
        elif self._expired:
            self.cut += 1
            ended(error_type=SHUTDOWN)
        else:
            ended(status=Status.CANCELLED)

    def _cut(self, request: web.Request, response: web.StreamResponse) -> web.StreamResponse:
        """Closes the client's connection without an end of the body, so that it sees a broken answer as one."""
        transport = request.transport
        if transport is not None:
            transport.close()  # once the client has taken the bytes that it is owed
            asyncio.get_running_loop().call_later(self._settings.write_timeout_s, transport.abort)
        return response

    def _passed(self, at_ns: int | None = None, *, status: Status = Status.OK, error_type: str = "") -> None:
        self._counters.requests.labels("", "passed").inc()

    def _refuse(
        self, request: web.Request, api: Api | None, arrival_ns: int, status: int, reason: str, detail: str
    ) -> web.StreamResponse:
        """Answers in place of the upstream. A request of a recorded API is an error."""
        self._counters.refused.labels(reason).inc()
        if api is not None:
            self._start(request, api, arrival_ns, Asked(b"")).end(error_type=str(status))
            self._counters.requests.labels(api.operation, str(Status.ERROR)).inc()
        response = problem(status, reason, detail)
        if status == 503:
            response.headers["Retry-After"] = "1"
        response.force_close()
        return response


class _StalledClient(Exception):
    """The client took no byte for the write time-out."""


_REPLACED: Final = ("host", "expect")
"""Headers of a request that the proxy writes itself."""


async def leave_out_added(request: web.Request, response: web.StreamResponse) -> None:
    """Takes the headers out again that aiohttp added to an upstream's answer."""
    given = request.get(_GIVEN)
    if given is not None:
        for name in _ADDED:
            if name.lower() not in given:
                response.headers.popall(name, None)
