"""Lets requests in: each shows its key, and a few are answered at a time. One ends when its client leaves."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from http import HTTPStatus
from typing import Any, Final

from clickhouse_connect.driver.exceptions import DatabaseError
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from collector.access.access import Access, AmbiguousError, ForbiddenError, UnauthenticatedError, WrongHostError
from collector.access.asgi import BEARER, admit
from collector.access.caller import Caller, Role
from collector.api import problems
from collector.api.problems import answer
from collector.api.session import CURRENT, ClientLeftError, QueryLimits, Session, TooLongError
from collector.base.status import ApiRefusal, IngestStatus
from collector.store.insert import MEMORY_LIMIT_EXCEEDED
from tokentrail.shared.hosts import READING, foreign_page

_WITHOUT_KEY: Final = frozenset({"/healthz", "/readyz", "/docs", "/openapi.json"})
_ASSETS: Final = "/static-offline-docs/"
"""Scripts and styles of `/docs`. A browser cannot show a key for a page, and this one has a field for it."""
_METRICS: Final = "/metrics"
_REFUSALS: Final = {
    AmbiguousError: (ApiRefusal.AMBIGUOUS, HTTPStatus.BAD_REQUEST),
    UnauthenticatedError: (ApiRefusal.UNAUTHENTICATED, HTTPStatus.UNAUTHORIZED),
    ForbiddenError: (ApiRefusal.FORBIDDEN, HTTPStatus.FORBIDDEN),
    WrongHostError: (ApiRefusal.WRONG_HOST, HTTPStatus.MISDIRECTED_REQUEST),
}
NO_ENTRY: Final = tuple(http_status for _, http_status in _REFUSALS.values())
"""The refusals of callers, also of `/metrics`."""
REFUSALS: Final = (*NO_ENTRY, HTTPStatus.TOO_MANY_REQUESTS)
"""The refusals that every endpoint may answer with."""
_RETRY_AFTER_S: Final = 2
_CANCEL_AGAIN_S: Final = 0.5
# ClickHouse's error codes
_TIMEOUT_EXCEEDED: Final = 159
_TOO_MANY_BYTES: Final = 396
_QUERY_WAS_CANCELLED: Final = 394
_LOCKED_OUT: Final = frozenset(
    {
        81,  # UNKNOWN_DATABASE
        164,  # READONLY
        192,  # UNKNOWN_USER
        193,  # WRONG_PASSWORD
        201,  # QUOTA_EXCEEDED
        497,  # ACCESS_DENIED
        516,  # AUTHENTICATION_FAILED
    }
)
"""Somebody has changed the server's users or dropped the database since the start, or a quota is used up."""


class Admission:
    """ASGI middleware in front of the API.

    Health and the description of the API need no key. `/metrics` needs one that reads all tenants. Everything else
    needs a key that reads, or an admin's when it is not a GET.

    A request takes a turn of its tenant, then a slot. A tenant has as many turns as there are slots. So of the many
    requests of one tenant few wait for a slot, and a request of another comes next.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        access: Access,
        limits: QueryLimits,
        status: IngestStatus,
        cancel: Callable[[str], None],
        metrics_without_key: bool,
    ) -> None:
        """`cancel` stops the queries that the store lists under a comment."""
        self._app = app
        self._access = access
        self._limits = limits
        self._status = status
        self._cancel = cancel
        self._without_key = _WITHOUT_KEY | ({_METRICS} if metrics_without_key else set())
        self._slots = asyncio.Semaphore(limits.concurrency)
        self._turns: dict[str, asyncio.Semaphore] = {}
        self._under_way: Counter[str] = Counter()
        """Requests by tenant. A tenant without one has no turns either."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. To HEAD, the server sends the answer to GET without its body."""
        if scope.get("method") == "HEAD":
            scope = {**scope, "method": "GET"}
        if scope["type"] != "http" or scope["path"] in self._without_key or scope["path"].startswith(_ASSETS):
            await self._app(scope, receive, send)
            return
        if scope["path"].endswith("\n"):  # the pattern of a route matches "/metrics\n" too, which is not _METRICS
            await answer(HTTPStatus.NOT_FOUND, HTTPStatus.NOT_FOUND.phrase)(scope, receive, send)
            return
        try:
            caller = self._admitted(scope)
        except PermissionError as error:
            reason, http_status = _REFUSALS[type(error)]
            headers = {"WWW-Authenticate": BEARER} if http_status == HTTPStatus.UNAUTHORIZED else {}
            await self._refuse(reason, http_status, str(error), headers)(scope, receive, send)
            return
        if scope["path"] == _METRICS:
            await self._app(scope, receive, send)
        elif self._is_full(caller.tenant):
            detail = "too many requests are under way already; try again"
            headers = {"Retry-After": str(_RETRY_AFTER_S)}
            await self._refuse(ApiRefusal.BUSY, HTTPStatus.TOO_MANY_REQUESTS, detail, headers)(scope, receive, send)
        else:
            await self._in_turn(Session(caller, self._limits), scope, receive, send)

    def _admitted(self, scope: MutableMapping[str, Any]) -> Caller:
        method, path = scope["method"], scope["path"]
        caller = admit(self._access, Role.READ if method in READING else Role.ADMIN, scope)
        route = f"{method} {path}"[:200]
        msg = None
        if path == _METRICS and caller.tenant:
            msg = f"the key {caller.key_id} is for one tenant; /metrics has those of all tenants"
        elif method not in READING and not caller.key_id:  # no page knows a key
            msg = foreign_page(scope["headers"])
        if msg is not None:
            self._access.audit.write("denied", key=caller.key_id, address=caller.address, route=route, reason=msg)
            raise ForbiddenError(msg)
        if method not in READING:
            self._access.audit.write(
                "changed", key=caller.key_id, role=caller.role, address=caller.address, route=route
            )
        return caller

    def _refuse(self, reason: ApiRefusal, http_status: HTTPStatus, detail: str, headers: dict[str, str]) -> ASGIApp:
        self._status.api_refused(reason)
        return answer(http_status, detail, headers=headers)

    def _is_full(self, tenant: str) -> bool:
        """Tell whether no more may wait. Half of the places are the most that one tenant has."""
        slots, places = self._limits.concurrency, self._limits.waiting
        most = slots + ((places + 1) // 2 if tenant else places)
        return self._under_way.total() >= slots + places or self._under_way[tenant] >= most

    async def _in_turn(self, session: Session, scope: Scope, receive: Receive, send: Send) -> None:
        """Wait for a slot and answer, unless the client leaves before."""
        tenant = session.caller.tenant
        turns = self._turns.setdefault(tenant, asyncio.Semaphore(self._limits.concurrency))
        messages: asyncio.Queue[Any] = asyncio.Queue(maxsize=16)

        async def listen() -> None:
            while True:
                message = await receive()
                await messages.put(message)
                if message["type"] == "http.disconnect":
                    return

        left = asyncio.create_task(listen())
        self._under_way[tenant] += 1
        try:
            if await self._got_slot(turns, left):
                try:
                    await self._answer(session, left, self._app(scope, messages.get, send))
                finally:
                    self._slots.release()
                    turns.release()
            else:
                self._status.api_refused(ApiRefusal.CLIENT_LEFT)
        finally:
            self._under_way[tenant] -= 1
            if not self._under_way[tenant]:
                del self._under_way[tenant], self._turns[tenant]
            left.cancel()

    async def _slot(self, turns: asyncio.Semaphore) -> None:
        await turns.acquire()
        try:
            await self._slots.acquire()
        except asyncio.CancelledError:
            turns.release()
            raise

    async def _got_slot(self, turns: asyncio.Semaphore, left: asyncio.Task[None]) -> bool:
        slot = asyncio.create_task(self._slot(turns))
        try:
            await asyncio.wait({slot, left}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not slot.done():
                slot.cancel()
        return slot.done()

    async def _answer(self, session: Session, left: asyncio.Task[None], answering: Awaitable[None]) -> None:
        session.start()
        CURRENT.set(session)
        work = asyncio.ensure_future(answering)
        try:
            await asyncio.wait({work, left}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({work}, timeout=_CANCEL_AGAIN_S / 10)  # the end of an answer also ends `left`
            if not work.done():
                session.left = True
                self._status.api_refused(ApiRefusal.CLIENT_LEFT)
            while not work.done():
                # The query may begin just now, so it is cancelled until the handler gives up.
                await asyncio.to_thread(self._cancel, session.comment)
                await asyncio.wait({work}, timeout=_CANCEL_AGAIN_S)
            await work
        finally:
            work.cancel()


def install(
    app: FastAPI,
    *,
    access: Access,
    limits: QueryLimits,
    status: IngestStatus,
    cancel: Callable[[str], None],
    metrics_without_key: bool,
) -> None:
    """Put `Admission` in front of the app, and answer the queries that its limits end."""

    def ended(reason: ApiRefusal, detail: str) -> JSONResponse:
        status.api_refused(reason)
        return answer(HTTPStatus.SERVICE_UNAVAILABLE, detail)

    def too_long(_: Request, error: Exception) -> JSONResponse:
        return ended(
            ApiRefusal.TOO_LONG, f"the answer takes longer than {limits.timeout_s:g} s; ask for a shorter window"
        )

    def client_left(_: Request, error: Exception) -> JSONResponse:
        return answer(HTTPStatus.SERVICE_UNAVAILABLE, "the client has left")  # nobody reads it

    def by_code(request: Request, error: Exception) -> JSONResponse:
        code = getattr(error, "code", None)
        if code == _TIMEOUT_EXCEEDED:
            return too_long(request, error)
        if code == MEMORY_LIMIT_EXCEEDED:
            most = f"{limits.memory_bytes / 2**20:.0f} MiB"
            detail = f"a query takes more memory than {most} or than there is; ask for a shorter window"
            return ended(ApiRefusal.TOO_LARGE, detail)
        if code == _TOO_MANY_BYTES:
            return ended(
                ApiRefusal.TOO_LARGE, "the answer has more than 64 MiB; ask for fewer (limit) or for a shorter window"
            )
        if code == _QUERY_WAS_CANCELLED:
            return client_left(request, error)
        if code in _LOCKED_OUT:
            return answer(HTTPStatus.SERVICE_UNAVAILABLE, f"the store does not let this collector query it: {error}")
        return problems.unexpected(request, error)

    app.add_exception_handler(TooLongError, too_long)
    app.add_exception_handler(ClientLeftError, client_left)
    app.add_exception_handler(DatabaseError, by_code)
    app.add_middleware(
        Admission,
        access=access,
        limits=limits,
        status=status,
        cancel=cancel,
        metrics_without_key=metrics_without_key,
    )
