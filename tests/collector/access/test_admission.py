"""A few requests to the API are answered at a time; the others wait, are told to come back, or leave."""

import asyncio

import pytest

from collector.access.access import Access
from collector.access.caller import Caller, Role
from collector.api.admission import Admission
from collector.api.session import (
    CURRENT,
    ClientLeftError,
    QueryLimits,
)
from collector.base.status import IngestStatus

WAIT_S = 120


class Server:
    """`Admission` around a handler that the test lets answer, and clients that may leave."""

    def __init__(self, **limits):
        self.status = IngestStatus()
        self.cancelled = []
        self.sessions = []
        self.may_answer = asyncio.Event()
        self.cancelling = asyncio.Semaphore(0)
        self.loop = asyncio.get_running_loop()
        self.app = Admission(
            self.handler,
            access=Access(),
            limits=QueryLimits(**limits),
            status=self.status,
            cancel=self.cancel,
            metrics_without_key=False,
        )
        self.app._admitted = lambda scope: Caller("k", Role.READ, scope["tenant"])

    async def handler(self, scope, receive, send):
        self.sessions.append(CURRENT.get())
        await self.may_answer.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})

    def cancel(self, comment):
        self.cancelled.append(comment)
        self.loop.call_soon_threadsafe(self.cancelling.release)

    def client(self, path="/api/v1/summary", tenant=""):
        return Client(self.app, path, tenant)


class Client:
    def __init__(self, app, path, tenant):
        self._inbox = asyncio.Queue()
        self._inbox.put_nowait({"type": "http.request", "body": b"", "more_body": False})
        self.sent = []
        scope = {
            "type": "http",
            "method": "GET",
            "path": path,
            "headers": [],
            "client": ("10.0.0.7", 1),
            "tenant": tenant,
        }
        self.task = asyncio.create_task(app(scope, self._inbox.get, self._send))

    async def _send(self, message):
        self.sent.append(message)

    def leave(self):
        self._inbox.put_nowait({"type": "http.disconnect"})

    async def status(self):
        await asyncio.wait_for(self.task, WAIT_S)
        return self.sent[0]["status"] if self.sent else None

    @property
    def headers(self):
        return dict(self.sent[0]["headers"])


def run(test):
    async def limited():
        await asyncio.wait_for(test(), WAIT_S)

    asyncio.run(limited())


async def settle():
    for _ in range(20):
        await asyncio.sleep(0)


def test_only_so_many_are_answered_at_a_time():
    async def test():
        server = Server(concurrency=2, waiting=10)
        clients = [server.client() for _ in range(5)]
        await settle()
        assert len(server.sessions) == 2
        server.may_answer.set()
        assert [await client.status() for client in clients] == [200] * 5
        assert len(server.sessions) == 5

    run(test)


def test_more_than_may_wait_are_told_to_come_back():
    async def test():
        server = Server(concurrency=1, waiting=2)
        clients = [server.client() for _ in range(3)]
        await settle()
        late = server.client()
        assert await late.status() == 429
        assert late.headers[b"retry-after"] == b"2"
        assert late.headers[b"content-type"] == b"application/problem+json"
        server.may_answer.set()
        assert [await client.status() for client in clients] == [200] * 3
        assert await server.client().status() == 200
        assert server.status.snapshot().api_refused == {"busy": 1}

    run(test)


def test_a_tenant_with_many_requests_leaves_places_and_turns_to_others():
    async def test():
        server = Server(concurrency=2, waiting=6)
        many = [server.client(tenant="noisy") for _ in range(6)]
        await settle()
        assert await many[5].status() == 429
        quiet = [server.client(tenant="quiet") for _ in range(3)]
        await settle()
        assert await server.client().status() == 429, "8 are under way"
        assert [session.caller.tenant for session in server.sessions] == ["noisy"] * 2
        server.may_answer.set()
        assert [await client.status() for client in (*many[:5], *quiet)] == [200] * 8
        order = [session.caller.tenant for session in server.sessions]
        assert order[2:4] == ["quiet"] * 2, "they come next, before those of noisy that were there first"
        assert (server.app._turns, server.app._under_way) == ({}, {})

    run(test)


@pytest.mark.parametrize(("tenant", "waiting"), [("", 4), ("acme", 1)], ids=["of all tenants", "the only place"])
def test_as_many_of_these_callers_wait_as_there_are_places(tenant, waiting):
    async def test():
        server = Server(concurrency=1, waiting=waiting)
        clients = [server.client(tenant=tenant) for _ in range(1 + waiting)]
        await settle()
        assert await server.client(tenant=tenant).status() == 429
        server.may_answer.set()
        assert [await client.status() for client in clients] == [200] * (1 + waiting)

    run(test)


def test_a_client_that_leaves_while_it_has_a_turn_and_waits_for_a_slot_gives_the_turn_back():
    async def test():
        server = Server(concurrency=1, waiting=8)
        first = server.client(tenant="other")
        second, third = (server.client(tenant="acme") for _ in range(2))
        await settle()
        second.leave()
        assert await second.status() is None
        server.may_answer.set()
        assert [await first.status(), await third.status()] == [200, 200]

    run(test)


def test_a_client_that_leaves_has_its_queries_stopped_until_the_handler_gives_up():
    async def test():
        server = Server(concurrency=1)
        client = server.client()
        await settle()
        client.leave()
        for _ in range(2):
            await server.cancelling.acquire()
        session = server.sessions[0]
        assert set(server.cancelled) == {session.comment}
        with pytest.raises(ClientLeftError):
            session.query_settings()
        next_one = server.client()
        await settle()
        assert len(server.sessions) == 1  # the slot is not free while the query runs
        server.may_answer.set()
        await client.task
        assert await next_one.status() == 200
        assert server.status.snapshot().api_refused == {"client_left": 1}
        assert server.sessions[1].comment not in server.cancelled

    run(test)


def test_a_client_that_leaves_while_it_waits_takes_no_slot():
    async def test():
        server = Server(concurrency=1)
        first, second, third = (server.client() for _ in range(3))
        await settle()
        second.leave()
        assert await second.status() is None
        server.may_answer.set()
        assert [await first.status(), await third.status()] == [200, 200]
        assert len(server.sessions) == 2
        assert server.status.snapshot().api_refused == {"client_left": 1}
        assert server.cancelled == []

    run(test)


def test_an_answer_that_is_complete_is_not_cancelled():
    async def test():
        server = Server(concurrency=1)
        client = server.client()
        await settle()
        server.may_answer.set()
        client.leave()
        assert await client.status() == 200
        assert server.cancelled == []
        assert server.status.snapshot().api_refused == {}

    run(test)


def test_a_handler_that_fails_gives_its_slot_back():
    async def test():
        server = Server(concurrency=1)

        async def fail(scope, receive, send):
            raise RuntimeError

        server.app._app = fail
        for _ in range(3):
            with pytest.raises(RuntimeError):
                await server.client().task

    run(test)


def test_a_server_that_stops_ends_the_handler_too():
    async def test():
        server, ended = Server(concurrency=1), asyncio.Event()

        async def handler(scope, receive, send):
            try:
                await server.may_answer.wait()
            finally:
                ended.set()

        server.app._app = handler
        client = server.client()
        await settle()
        client.task.cancel()
        assert await ended.wait(), "else the test waits for ever"

    run(test)


@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/readyz"])
def test_metrics_and_health_do_not_wait_for_queries(path):
    async def test():
        server = Server(concurrency=1, waiting=1)
        for _ in range(2):
            server.client()
        await settle()
        seen = []

        async def handler(scope, receive, send):
            seen.append(scope["path"])

        server.app._app = handler
        await server.client(path).task
        assert seen == [path]

    run(test)
