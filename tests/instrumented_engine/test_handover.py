"""Two engines: one computes prompts, the other one has the requests. Every failure ends in an answer."""

import contextlib
import http.client
import json
import socket
import threading

import pytest
import torch

from instrumented_engine.core.handover import KvLayout, Prefilled
from instrumented_engine.core.plan import Plan, Scheduled
from instrumented_engine.model.fingerprint import PIECE_BYTES, PIECES, fingerprint
from instrumented_engine.model.llama import Llama
from instrumented_engine.model.runner import ModelRunner
from instrumented_engine.model.weights import open_model
from instrumented_engine.server import consumer
from tokentrail.testing import MemoryTrail

from .handover_support import PROMPT, complete, consumer_of, events, frame, phases, producer_of, scraped
from .server_support import MODEL, script, served, tiny_loader
from .support import Gate, make_engine, make_request, make_sequence, request_span
from .test_model import save_tiny


def test_one_request_on_two_engines():
    cached = {"prefix_caching": True}
    with (
        served(tiny_loader()) as plain,
        producer_of(scheduling=cached) as prefill,
        consumer_of(prefill.kv_port) as decode,
    ):
        plain.until(lambda: plain.service.ready)
        wants = [
            {"name": "one"},
            {"name": "two", "n": 2, "temperature": 1, "seed": 7},
            {"name": "three", "logprobs": 1},
        ]
        for want, cached in zip(wants, (0, 8, 8), strict=True):
            texts, usage = complete(decode, **want)
            assert texts == complete(plain, **want)[0]
            assert usage["prompt_tokens_details"] == {"cached_tokens": cached}, "in the cache of the other engine"
        assert decode.engine.scheduler.block_manager.num_used_blocks == 0
        assert decode.engine.scheduler._host.num_used_blocks == 0
        assert prefill.engine.scheduler.block_manager.num_used_blocks == 0

        request = request_span(decode.trail, "cmpl-one")
        tokens = decode.trail.spans("tokentrail.token", parent=request)
        assert len(tokens) == request.attributes["gen_ai.usage.output_tokens"] == 6
        assert phases(decode.trail, request) == [
            "queued",
            "prefill",
            "kv_transfer",
            "queued",
            "kv_transfer",
            "prefill",
            "decode",
        ]

        nbytes = -(-(len(PROMPT) - 1) // 4) * 32
        (reason, sent), *_ = events(prefill.trail, "offload")
        assert (reason, sent.attributes["tokentrail.kv.bytes"]) == ("handed_over", nbytes)
        assert sent.attributes["tokentrail.kv.beneficiary"] == f"{request.trace_id:032x}"
        received = [s for reason, s in events(decode.trail, "restore") if reason == "handed_over"]
        assert (received[0].parent_id, received[0].attributes["tokentrail.kv.bytes"]) == (request.span_id, nbytes)
        assert not [s for s in prefill.trail.spans() if "gen_ai.operation.name" in s.attributes], "one row, not two"

        computed = [
            sum(s.attributes["tokentrail.step.prefill_tokens"] for s in server.trail.spans("tokentrail.step"))
            for server in (prefill, decode)
        ]
        assert computed[0] == 3 * (len(PROMPT) - 1) - 2 * 8
        assert computed[1] == 3 + 1, "the last token of each prompt, and of one follower"
        assert scraped(decode, "kv_hand_overs_total") == ['{outcome="ok"} 3.0']
        assert scraped(prefill, "kv_hand_overs_total") == ['{outcome="sent"} 3.0']
        assert scraped(decode, "kv_hand_over_bytes_total") == [f" {3 * nbytes}.0"]
        assert scraped(prefill, "kv_hand_over_bytes_total") == [f" {3 * nbytes}.0"]


def test_beams_and_drafts_begin_behind_a_prompt_of_another_engine():
    repeated = "ab ab ab ab ab"
    known = {"script": script(**{repeated: " ab ab ab"})}
    drafts = {"scheduling": {"speculative_tokens": 3}}
    with (
        served(tiny_loader(**known)) as plain,
        producer_of(**known) as prefill,
        consumer_of(prefill.kv_port, **known, **drafts) as decode,
    ):
        plain.until(lambda: plain.service.ready)
        beams = {"use_beam_search": True, "n": 3, "max_tokens": 5}
        for name, want in {"beams": beams, "drafts": {"prompt": repeated, "max_tokens": 9}}.items():
            assert complete(decode, name, **want)[0] == complete(plain, name, **want)[0]
        assert decode.service.observer.hand_overs == {"ok": 2}
        assert request_span(decode.trail, "cmpl-beams").attributes["tokentrail.beam_width"] == 3
        drafted = request_span(decode.trail, "cmpl-drafts").attributes
        assert drafted["tokentrail.drafted_tokens"] >= drafted["tokentrail.accepted_tokens"] > 0
        decode.until(lambda: not decode.engine.busy)
        assert decode.engine.scheduler.block_manager.num_used_blocks == 0
        assert decode.engine.scheduler._host.num_used_blocks == 0


def test_prompts_that_nobody_is_asked_for():
    with consumer_of(1) as decode:
        for name, want in {
            "lists": {"prompt": ["ab", "cd"]},
            "short": {"prompt": "a"},
            "echo": {"echo": True, "logprobs": 1},
        }.items():
            complete(decode, name, **want)
        assert decode.service.observer.hand_overs == {}


@contextlib.contextmanager
def scripted(answer):
    """A producer that answers each question by `answer(connection)` and closes the connection; its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection, contextlib.suppress(OSError):
                        connection.recv(1)
                        answer(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(120)


FULL = b"x" * 96
BROKEN = {
    "dies at once": b"",
    "dies within the blocks": frame(payload=FULL[:50], size=96),
    "sends too few blocks": frame(payload=FULL[:64]),
    "sends too many blocks": frame(payload=FULL + FULL),
    "wants to send a terabyte": frame(size=1 << 40),
    "speaks another version": frame(payload=FULL, version=2),
    "speaks HTTP": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "sends no JSON": frame(b"nonsense", FULL),
    "sends wrong types": frame(b'{"started_ns": "soon"}', FULL),
    "sends a huge header": frame(b" " * 20_000, FULL),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_producer_costs_a_prefill(how, monkeypatch):
    monkeypatch.setattr(consumer, "BACK_OFF_S", 3600)
    with scripted(lambda connection: connection.sendall(BROKEN[how])) as port, consumer_of(port) as decode:
        first = complete(decode, "first")
        second = complete(decode, "second")
        assert first[0] == second[0]
        assert decode.service.observer.hand_overs == {"broken": 1, "backing_off": 1}
        request = request_span(decode.trail, "cmpl-first")
        assert phases(decode.trail, request) == ["queued", "kv_transfer", "queued", "prefill", "decode"]
        (reason, event), (other, _) = events(decode.trail, "restore")
        assert (reason, other) == ("hand_over_broken", "hand_over_backing_off")
        assert (event.parent_id, event.attributes["tokentrail.kv.blocks"]) == (request.span_id, 0)


def test_a_slow_producer_is_waited_for_no_longer_than_allowed():
    hold = threading.Event()
    with scripted(lambda _: hold.wait(120)) as port, consumer_of(port, timeout_s=0.05) as decode:
        complete(decode, "late")
        assert decode.service.observer.hand_overs == {"timeout": 1}
        hold.set()


def test_a_producer_that_is_gone():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with consumer_of(port) as decode:
        complete(decode, "alone")
        assert decode.service.observer.hand_overs == {"unreachable": 1}


def test_stamps_of_a_wrong_clock_stay_within_the_request():
    said = frame(b'{"started_ns": 1, "computed_ns": 9000000000000000000}', FULL)
    with scripted(lambda connection: connection.sendall(said)) as port, consumer_of(port) as decode:
        with contextlib.suppress(AssertionError):  # the blocks are nonsense, which the engine under test notices
            complete(decode, "skewed")
        [(_, event)] = [found for found in events(decode.trail, "restore") if found[0] == "handed_over"]
        request = request_span(decode.trail, "cmpl-skewed")
        assert request.start_ns <= event.start_ns <= event.end_ns <= request.end_ns
        assert event.duration_ns == 0


def test_another_model_is_refused_and_asked_again():
    with producer_of(model="other") as prefill, consumer_of(prefill.kv_port) as decode:
        complete(decode, "first")
        complete(decode, "second")
        assert decode.service.observer.hand_overs == {"refused": 2}, "the other engine may be replaced at any time"
        assert prefill.engine.steps == 0


def test_blocks_without_room_are_dropped():
    with producer_of() as prefill, consumer_of(prefill.kv_port, host_blocks=2) as decode:
        complete(decode, "large")
        assert decode.service.observer.hand_overs == {"no_room": 1}
        assert [reason for reason, _ in events(decode.trail, "restore")] == ["hand_over_no_room"]


def test_a_client_that_leaves_frees_the_producers_blocks():
    gate = Gate()
    with producer_of(gate=gate) as prefill, consumer_of(prefill.kv_port) as decode:
        body = json.dumps({"model": MODEL, "prompt": PROMPT})
        client = http.client.HTTPConnection(decode.url.removeprefix("http://"))
        client.request("POST", "/v1/completions", body, {"content-type": "application/json", "x-request-id": "gone"})
        prefill.until(lambda: prefill.engine.scheduler.running)
        client.close()
        decode.until(lambda: decode.service._active == 0)
        gate.set()
        prefill.until(lambda: prefill.service._active == 0 and not prefill.engine.busy)
        assert prefill.engine.scheduler.block_manager.num_used_blocks == 0
        assert request_span(decode.trail, "cmpl-gone").attributes["tokentrail.status"] == "cancelled"


def test_received_blocks_are_in_memory_once(trail):
    engine = make_engine(trail, scheduling={"host_blocks": 2})
    taken, dropped = make_request(trail, range(1, 10)), make_request(trail, range(1, 10))
    for request in (taken, dropped):
        request.prefilled = Prefilled(8, engine._runner.read([0, 1]), started_ns=1, computed_ns=2, received_ns=3)
        engine.add(request)
    assert [len(request.sequences[0].host_blocks) for request in (taken, dropped)] == [2, 0]
    assert [request.prefilled for request in (taken, dropped)] == [None, None]


def test_blocks_of_the_real_model(tmp_path):
    """The second engine computes the last token only, and gets the logits of one that computes all."""
    save_tiny(tmp_path)
    file = open_model(tmp_path)
    model = Llama(file.config(), file.weights(torch.float32, torch.device("cpu")), 256)
    prompt = [(7 * i) % 97 for i in range(11)]
    first, second = (ModelRunner(model, kv_blocks=8, block_size=4, eos_ids=[], host_blocks=8) for _ in range(2))
    sequence = make_sequence(MemoryTrail(), prompt)
    sequence.block_table = [5, 0, 3]

    def run(runner, count):
        result = runner.run(Plan([Scheduled(sequence, count)]))
        sequence.num_computed_tokens += count
        return result

    run(first, 10)
    contents = first.read([5, 0, 3])
    layout = KvLayout("", 4, first.block_bytes)
    assert len(contents) == layout.nbytes(10) == layout.nbytes(12) != layout.nbytes(8)
    [[expected]] = run(first, 1).token_ids
    second.write([6, 1, 2], contents)
    second.transfer([6, 1, 2], [5, 0, 3], to_host=False)
    sequence.num_computed_tokens = 10
    assert run(second, 1).token_ids == [[expected]]
    assert torch.equal(second._cache[:, [5, 0, 3]], first._cache[:, [5, 0, 3]])


@pytest.mark.parametrize("size", [10, PIECES * PIECE_BYTES, 3 * PIECES * PIECE_BYTES])
def test_a_fingerprint_tells_models_and_traits_apart(tmp_path, size):
    model = tmp_path / "model.gguf"
    model.write_bytes(bytes(size))
    known = fingerprint(model, "traits")
    assert known == fingerprint(model, "traits") != fingerprint(model, "others")
    for place in (0, min(size, PIECE_BYTES) - 1, *([size // 2] if size <= PIECES * PIECE_BYTES else []), size - 1):
        changed = bytearray(size)
        changed[place] = 1
        model.write_bytes(changed)
        assert fingerprint(model, "traits") != known
    model.write_bytes(b"")
    assert fingerprint(model, "traits") != known
