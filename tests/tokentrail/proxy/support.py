"""An upstream that sends scripted bytes, a client that keeps the bytes it gets, and a proxy between them."""

import asyncio
import contextlib
import json

import h11

from tokentrail import now_ns
from tokentrail.proxy.server import Proxy
from tokentrail.proxy.settings import ProxySettings
from tokentrail.semconv import ENGINE
from tokentrail.testing import MemoryTrail

CHAT = "/v1/chat/completions"
STREAMED = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
JSON = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
BODY = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hé"}]}


def chunked(*parts):
    """Each part as a chunk of its own."""
    return [b"%x\r\n%b\r\n" % (len(part), part) for part in parts]


END = b"0\r\n\r\n"


def delta(content="", *, index=0, finish=None, **fields):
    """One event of a chat stream."""
    choice = {"index": index, "delta": {"content": content}, "finish_reason": finish}
    event = {"id": "chatcmpl-1", "model": "m-2", "choices": [choice], **fields}
    return b"data: " + json.dumps(event, ensure_ascii=False).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"
USAGE = b"data: " + json.dumps(
    {"id": "chatcmpl-1", "choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 40}}
).encode() + b"\n\n"  # fmt: skip


class Upstream:
    """Sends `script` to each request: bytes, or an event to wait for. `requests` holds the head and the body of each.
    `asked` is set by a request, `gone` when the peer closes its connection during an answer.
    """

    def __init__(self, *script, close=False):
        self.script = script
        self.close = close
        self.requests = []
        self.sent = self.connections = 0
        self.asked, self.gone = asyncio.Event(), asyncio.Event()

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        return self

    async def __aexit__(self, *_):
        self._server.close()

    async def _serve(self, reader, writer):
        self.connections += 1
        try:
            begun = b""
            while True:
                head = begun + await reader.readuntil(b"\r\n\r\n")
                self.requests.append((head, await _body(head, reader)))
                self.asked.set()
                watch = asyncio.ensure_future(reader.read(1))
                watch.add_done_callback(lambda read: read.cancelled() or read.exception())
                for part in self.script:
                    if isinstance(part, asyncio.Event):
                        wait = asyncio.ensure_future(part.wait())
                        await asyncio.wait({wait, watch}, return_when=asyncio.FIRST_COMPLETED)
                        wait.cancel()
                    else:
                        writer.write(part)
                        self.sent += len(part)
                        await writer.drain()
                        await asyncio.sleep(0.002)  # so that each part is a segment of its own
                    if watch.done() and not watch.result():
                        self.gone.set()
                        return
                if self.close:
                    return
                begun = await watch
                if not begun:
                    return
        except (ConnectionError, asyncio.IncompleteReadError):
            self.gone.set()
        except asyncio.CancelledError:
            pass  # the test is over, and Python 3.11 logs a handler that is cancelled as an error
        finally:
            writer.close()


async def _body(head, reader):
    lower = head.lower()
    if b"transfer-encoding: chunked" in lower:
        body = b""
        while size := int(await reader.readline(), 16):
            body += await reader.readexactly(size)
            await reader.readline()
        await reader.readline()
        return body
    _, found, rest = lower.partition(b"content-length:")
    return await reader.readexactly(int(rest.split(b"\r\n")[0])) if found else b""


class Answer:
    """The answer that a client got. `whole` is False when it broke off."""

    def __init__(self):
        self.status, self.headers, self.body, self.whole = 0, [], b"", False

    def header(self, name):
        return [value.decode() for key, value in self.headers if key == name.encode()]

    def json(self):
        return json.loads(self.body)


class Client:
    """One HTTP/1.1 connection, read by h11."""

    def __init__(self, url):
        self._url = url

    async def __aenter__(self):
        host, port = self._url.removeprefix("http://").split(":")
        self.reader, self.writer = await asyncio.open_connection(host, int(port), limit=1 << 16)
        self._parser = h11.Connection(h11.CLIENT)
        return self

    async def __aexit__(self, *_):
        self.writer.close()

    async def send(self, body=BODY, *, path=CHAT, method="POST", headers=()):
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        head = [("Host", "proxy"), ("Content-Length", str(len(body))), *headers]
        parts = [h11.Request(method=method, target=path, headers=head), h11.Data(body), h11.EndOfMessage()]
        self.writer.write(b"".join(self._parser.send(part) or b"" for part in parts))
        await self.writer.drain()

    def next(self):
        """Another request on the same connection follows."""
        self._parser.start_next_cycle()

    async def receive(self, *, until=None):
        """The whole answer, or the part that came until `until(answer)` is true."""
        answer = Answer()
        while True:
            try:
                event = self._parser.next_event()
            except h11.RemoteProtocolError:
                return answer
            if event is h11.NEED_DATA:
                try:
                    self._parser.receive_data(await asyncio.wait_for(self.reader.read(1 << 16), 120))
                except ConnectionError:
                    return answer
                continue
            if isinstance(event, h11.Response):
                answer.status, answer.headers = event.status_code, event.headers.raw_items()
                answer.headers = [(name.lower(), value) for name, value in answer.headers]
            elif isinstance(event, h11.Data):
                answer.body += event.data
            else:
                answer.whole = isinstance(event, h11.EndOfMessage)
                return answer
            if until is not None and until(answer):
                return answer


@contextlib.asynccontextmanager
async def proxied(upstream, *, trail=None, **settings):
    """A proxy before `upstream`, which is an `Upstream` or an address. Its trail keeps the spans."""
    url = upstream if isinstance(upstream, str) else upstream.url
    trail = trail or MemoryTrail(clock=now_ns, resource={"service.name": "proxy", ENGINE: "e"})
    given = {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "drain_timeout_s": 0.2, **settings}
    proxy = Proxy(ProxySettings(upstream=url, **given), trail)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()


def exchange(*script, body=BODY, path=CHAT, method="POST", headers=(), close=False, **settings):
    """One request through a proxy: the answer, the request that the upstream got, and the trail."""

    async def run():
        async with Upstream(*script, close=close) as upstream:
            async with proxied(upstream, **settings) as proxy, Client(proxy.url) as client:
                await client.send(body, path=path, method=method, headers=headers)
                answer = await client.receive()
            return answer, (upstream.requests or [None])[0], proxy.trail

    return asyncio.run(run())


def request_span(trail):
    """The only request, and its token spans."""
    spans = trail.spans()
    (request,) = [span for span in spans if "tokentrail.status" in span.attributes]
    return request, [span for span in spans if span.name == "tokentrail.token"]


def recorded(*script, **given):
    _, seen, trail = exchange(*script, **given)
    return *request_span(trail), seen


def events(*events):
    return [b"data: " + json.dumps(event).encode() + b"\n\n" for event in events]
