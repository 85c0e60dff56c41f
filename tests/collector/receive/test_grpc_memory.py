"""Messages that arrive over gRPC: how many at a time, and how much of the others the receiver takes."""

import select
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from collector.otlp.signals import TRACES
from collector.pipeline.settings import split_address
from collector.receive import grpc as grpc_receiver
from collector.receive.http import BodyLimits
from tests.collector.receive.test_otlp_grpc import BODY, WAIT_S, export, frame, half_sent, header, receiving, status_of

SENT = 16 * 2**20
WINDOW_UPDATE, SETTINGS, INITIAL_WINDOW = 8, 4, 4


@pytest.fixture
def receiver(tmp_path):
    """It has places for two messages."""
    with receiving(
        tmp_path, BodyLimits(sent=SENT, decompressed=SENT, under_way=2 * SENT), message_timeout_s=WAIT_S
    ) as it:
        yield it


def test_slow_messages_give_way_when_others_wait(receiver, monkeypatch):
    monkeypatch.setattr(grpc_receiver, "_PATIENCE_S", 1.5)
    slow = [half_sent(receiver) for _ in range(2)]
    time.sleep(2)
    assert not any(call.done() for call, _ in slow), "nobody waits"
    with ThreadPoolExecutor(3) as pool:
        assert [f.result() for f in [pool.submit(export, receiver, BODY) for _ in range(3)]] == [b""] * 3
    for call, gone in slow:
        if call.done():
            assert call.exception().code() is grpc.StatusCode.UNAVAILABLE
            assert "within 1.5 s, and others wait; try again" in status_of(call.exception()).message
        call.cancel()
        gone.set()
    assert any(call.exception().code() is grpc.StatusCode.UNAVAILABLE for call, _ in slow if not call.cancelled())


def test_of_a_message_that_has_no_place_little_is_taken(receiver):
    """grpc took up to 12 MiB of each such message: 120 of them had 1.5 GB."""
    slow = [half_sent(receiver) for _ in range(2)]
    time.sleep(0.5)
    assert _taken(receiver, seconds=1.0) < 2**20
    for call, gone in slow:
        call.cancel()
        gone.set()
    assert _taken(receiver, seconds=30.0) == SENT


def _taken(receiver, seconds):
    """The bytes of a message that the receiver takes within some seconds, as its windows of HTTP/2 say."""
    told = {":method": "POST", ":scheme": "http", ":path": f"/{TRACES.grpc_service}/Export", ":authority": "a"}
    told |= {"te": "trailers", "content-type": "application/grpc"}
    headers = frame(1, 4, b"".join(header(*item) for item in told.items()))
    windows, received = {0: 65_535, 1: 65_535}, b""
    data = memoryview(b"\0" + (SENT - 5).to_bytes(4, "big") + b"\xff" * (SENT - 5))
    ends = time.monotonic() + seconds
    with socket.create_connection(split_address(receiver.server.url.removeprefix("http://")), WAIT_S) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, b"", stream=0) + headers)
        sent = 0
        while sent < SENT and (left := ends - time.monotonic()) > 0:
            if size := min(16_384, SENT - sent, *windows.values()):
                connection.sendall(frame(0, 0, data[sent : sent + size]))
                windows = {stream: window - size for stream, window in windows.items()}
                sent += size
            readable = select.select([connection], [], [], 0 if size else left)[0]
            received += connection.recv(65_536) if readable else b""
            while len(received) >= 9 + int.from_bytes(received[:3], "big"):
                size, kind, flags = int.from_bytes(received[:3], "big"), received[3], received[4]
                payload, stream = received[9 : 9 + size], int.from_bytes(received[5:9], "big")
                received = received[9 + size :]
                if kind == WINDOW_UPDATE:
                    windows[stream] += int.from_bytes(payload, "big")
                elif kind == SETTINGS and not flags:
                    given = {
                        int.from_bytes(payload[n : n + 2], "big"): payload[n + 2 : n + 6] for n in range(0, size, 6)
                    }
                    windows[1] += int.from_bytes(given.get(INITIAL_WINDOW, b"\0\0\xff\xff"), "big") - 65_535
                    connection.sendall(frame(SETTINGS, 1, b"", stream=0))
                elif kind == 6 and not flags:
                    connection.sendall(frame(6, 1, payload, stream=0))
    return sent
