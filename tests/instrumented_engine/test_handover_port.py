"""The port on which an engine is asked for prompts: hostile questions, slow consumers, and frames."""

import asyncio
import contextlib
import logging
import socket
import struct

import pytest

from instrumented_engine.core.handover import Prefilled
from instrumented_engine.server import producer
from instrumented_engine.server.frames import Answer, Question, read_frame, write_frame
from instrumented_engine.server.producer import Producer
from tokentrail.testing import MemoryTrail

from .handover_support import frame, producer_of
from .support import make_sequence


def ask(port, sent):
    """The answer to some bytes."""

    async def talk():
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        try:
            return (await read_frame(reader, Answer, 1 << 20))[0].error
        finally:
            writer.close()

    return asyncio.run(asyncio.wait_for(talk(), 120))


def test_hostile_questions():
    question = Question(fingerprint="tiny", handle="not a handle").model_dump_json().encode()
    handle = MemoryTrail().lend(make_sequence(MemoryTrail(), [1]).request.trail)
    known = Question(fingerprint="tiny", handle=handle).model_dump_json().encode()
    with producer_of() as prefill:
        assert "protocol" in ask(prefill.kv_port, b"GET / HTTP/1.1\r\n\r\n" + b" " * 9)
        assert "version 9" in ask(prefill.kv_port, frame(version=9))
        assert "too large" in ask(prefill.kv_port, frame(size=1 << 62))
        assert "not valid" in ask(prefill.kv_port, frame(b'{"fingerprint": 7}'))
        assert "32-bit" in ask(prefill.kv_port, frame(question, b"abc"))
        assert "is empty" in ask(prefill.kv_port, frame(known))
        assert "token ids must be" in ask(prefill.kv_port, frame(known, b"\xff" * 4))
        assert "maximum context length" in ask(prefill.kv_port, frame(known, struct.pack("=I", 7) * 120))
        assert ask(prefill.kv_port, frame(known, struct.pack("=I", 7) * 119)) == ""


@contextlib.asynccontextmanager
async def asked(compute, *, timeout_s):
    """A producer, and the connection of a consumer that has asked it for a prompt of one token."""
    listener = socket.create_server(("127.0.0.1", 0))
    producer = Producer(listener, compute, places=1, timeout_s=timeout_s)
    await producer.start()
    with socket.create_connection(listener.getsockname()) as consumer:
        consumer.sendall(frame(b'{"fingerprint": "f", "handle": "h"}', struct.pack("=I", 7)))
        yield producer, consumer
        await producer.stop()


def test_a_consumer_that_does_not_read_loses_its_answer():
    """Its bytes are more than the operating system keeps, and are given up after the time-out."""
    size, computing = 64 << 20, asyncio.Event()

    async def compute(tokens, fingerprint, handle):
        computing.set()
        return Prefilled(len(tokens), bytes(size), started_ns=1, computed_ns=2)

    async def talk():
        async with asked(compute, timeout_s=0.05) as (producer, silent):
            await computing.wait()
            await asyncio.wait(producer._connections)
            return await asyncio.to_thread(drained, silent)

    assert asyncio.run(asyncio.wait_for(talk(), 120)) < size


def test_a_question_that_waits_is_not_a_list_of_numbers_yet(monkeypatch):
    """A list of its tokens has nine times the bytes, and a thousand questions may wait."""
    told = []
    monkeypatch.setattr(producer, "_ids", lambda payload: told.append("list") or [7])

    async def compute(tokens, fingerprint, handle):
        await asyncio.sleep(0)
        told.append("computed")
        return Prefilled(1, b"", started_ns=1, computed_ns=2)

    async def talk():
        async def ask(port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(frame(b'{"fingerprint": "f", "handle": "h"}', struct.pack("=I", 7)))
            await read_frame(reader, Answer, 0)
            writer.close()

        listener = socket.create_server(("127.0.0.1", 0))
        one = Producer(listener, compute, places=1, timeout_s=120)
        await one.start()
        async with one._places:
            asking = [asyncio.create_task(ask(listener.getsockname()[1])) for _ in range(2)]
            await until(lambda: len(one._places._waiters or ()) == 2)
        await asyncio.gather(*asking)
        await one.stop()

    asyncio.run(asyncio.wait_for(talk(), 120))
    assert told == ["list", "computed"] * 2


async def until(condition):
    while not condition():  # noqa: ASYNC110  # it has no event
        await asyncio.sleep(0.005)


async def no_work(tokens, fingerprint, handle):
    return Prefilled(len(tokens), b"", started_ns=1, computed_ns=2)


def test_questions_have_a_room_together_which_those_that_left_give_back(monkeypatch):
    """A thousand connections that each announced 4 MiB could hold 4 GiB, as long as they liked when they waited."""
    monkeypatch.setattr(producer, "MAX_QUESTIONS_BYTES", 1 << 20)
    question = frame(b'{"fingerprint": "f", "handle": "h"}', struct.pack("=I", 7) * 150_000)

    async def talk():
        async def ask():
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(question)
            answer, _ = await read_frame(reader, Answer, 0)
            writer.close()
            return answer.error

        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        one = Producer(listener, no_work, places=1, timeout_s=120)
        await one.start()
        _, arriving = await asyncio.open_connection("127.0.0.1", port)
        arriving.write(question[:-1])
        await until(lambda: one._room < 1 << 20)
        assert await ask() == "the prefill engine has questions of 1 MiB already"
        async with one._places:
            arriving.write(question[-1:])  # it waits for its turn now, as long as it stays
            await until(lambda: one._places._waiters)
            assert await ask() == "the prefill engine has questions of 1 MiB already"
            arriving.close()
            await asyncio.wait(one._connections)
        assert await ask() == ""
        assert one._places._value == 1
        await until(lambda: one._room == 1 << 20)
        await one.stop()

    asyncio.run(asyncio.wait_for(talk(), 120))


@pytest.mark.parametrize("leaves", [True, False])
def test_the_log_says_who_left(leaves, caplog):
    """A consumer that leaves is told; the end of the producer itself is not its consumers' leaving."""

    async def talk():
        computing = asyncio.Event()

        async def compute(tokens, fingerprint, handle):
            computing.set()
            await asyncio.Event().wait()

        async with asked(compute, timeout_s=60) as (producer, consumer):
            await computing.wait()
            if leaves:
                consumer.close()
                await asyncio.wait(producer._connections)

    with caplog.at_level(logging.INFO):
        asyncio.run(asyncio.wait_for(talk(), 120))
    assert ("a consumer left" in caplog.text) == leaves


def drained(connection):
    """The number of bytes that a connection has until it ends."""
    received = 0
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(1 << 20):
            received += len(part)
    return received


def test_a_frame_is_sent_when_it_is_said_to_be():
    """Nothing is left in the transport, whose rest nobody would wait for."""

    async def talk():
        left = []

        async def answer(reader, writer):
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            await write_frame(writer, Answer(), bytes(8 << 20))
            left.append(writer.transport.get_write_buffer_size())
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            _, contents = await read_frame(reader, Answer, 8 << 20)
            writer.close()
        return left, len(contents)

    assert asyncio.run(asyncio.wait_for(talk(), 120)) == ([0], 8 << 20)


def test_a_frame_goes_through(monkeypatch):
    async def talk():
        reader = asyncio.StreamReader()
        reader.feed_data(frame(b'{"fingerprint": "f", "handle": "h"}', b"abc"))
        return await read_frame(reader, Question, 3)

    assert asyncio.run(talk()) == (Question(fingerprint="f", handle="h"), b"abc")
