"""A server whose clients leave, whose model is not there yet, whose engine is full, and whose device fails."""

import asyncio
import json
import threading

import httpx
import pytest

from tokentrail import Status

from .server_support import MODEL, post, script, served, tiny_loader
from .support import Gate, request_span


def loader_behind(loading):
    """A loader that waits for the event."""

    def load(settings, observer):
        assert loading.wait(120)
        return tiny_loader()(settings, observer)

    return load


async def leave_early(url, *, stream, seen):
    """Ask for a long answer and hang up once the engine works on it."""
    body = {"model": MODEL, "prompt": "long", "max_tokens": 100, "temperature": 0, "stream": stream}
    async with httpx.AsyncClient(timeout=120) as client:
        task = asyncio.create_task(
            client.post(f"{url}/v1/completions", json=body, headers={"x-request-id": f"gone-{stream}"})
        )
        while not seen():  # noqa: ASYNC110  # another thread's state has no asyncio event
            await asyncio.sleep(0.005)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_its_blocks(stream):
    gate = Gate()
    with served(tiny_loader(script=script(long="x" * 100), gate=gate)) as server:
        server.until(lambda: server.service.ready)
        scheduler = server.engine.scheduler
        asyncio.run(leave_early(server.url, stream=stream, seen=lambda: scheduler.running))
        server.until(lambda: server.service._active == 0)  # the cancellation waits behind the step that is held
        assert server.service.waiting == 0, "it is no request"
        gate.set()
        server.until(lambda: not server.engine.busy)
        assert scheduler.block_manager.num_used_blocks == 0
        request = request_span(server.trail, f"cmpl-gone-{stream}")
        assert request.attributes["tokentrail.status"] == "cancelled"
        assert request.attributes["gen_ai.usage.output_tokens"] <= 2


def test_a_client_that_leaves_while_the_model_loads():
    loading = threading.Event()
    with served(loader_behind(loading)) as server:
        asyncio.run(leave_early(server.url, stream=True, seen=lambda: server.service.waiting == 1))
        server.until(lambda: server.service.waiting == 0)
        loading.set()
        server.until(lambda: server.service.ready)
        assert server.engine.steps == 0
        assert request_span(server.trail, "cmpl-gone-True").attributes["tokentrail.status"] == "cancelled"


def test_requests_wait_for_the_model_in_their_own_phase():
    loading = threading.Event()
    with served(loader_behind(loading)) as server:
        answers = []
        thread = threading.Thread(target=lambda: answers.append(post(server, "early")))
        thread.start()
        server.until(lambda: server.service.waiting == 1)
        assert httpx.get(f"{server.url}/healthz").status_code == 200
        assert httpx.get(f"{server.url}/readyz").json() == {"status": "loading"}
        loading.set()
        thread.join(120)
        assert answers[0].status_code == 200
        request = request_span(server.trail, "cmpl-early")
        phases = {s.attributes["tokentrail.phase.name"]: s for s in server.trail.spans("tokentrail.phase")}
        assert phases["cold_start"].start_ns == request.start_ns
        assert phases["cold_start"].end_ns == phases["queued"].start_ns
        assert phases["queued"].end_ns == phases["prefill"].start_ns


def test_a_model_that_cannot_load():
    def load(settings, observer):
        raise OSError("the disk is gone")

    with served(load) as server:
        server.until(lambda: server.service.failure is not None)
        assert httpx.get(f"{server.url}/readyz").json() == {"status": "failed", "reason": "the disk is gone"}
        answer = post(server, "late")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_unavailable")
        assert "the disk is gone" in answer.json()["error"]["message"]
        assert request_span(server.trail, "cmpl-late").attributes["error.type"] == "engine_unavailable"


def test_the_space_at_the_start_of_an_answer_is_kept():
    with served(tiny_loader(script=script(hello=" there"), strips_first_space=True)) as server:
        server.until(lambda: server.service.ready)
        assert post(server, "spaced", max_tokens=9).json()["choices"][0]["text"] == " there"


def test_too_many_waiting_requests_are_refused():
    gate = Gate()
    with served(tiny_loader(gate=gate, max_seqs=1), max_waiting=1) as server:
        server.until(lambda: server.service.ready)
        threads = [threading.Thread(target=post, args=(server, f"ok-{i}")) for i in range(2)]
        threads[0].start()
        server.until(lambda: server.engine.scheduler.running)
        threads[1].start()
        server.until(lambda: server.service.waiting == 1)
        answer = post(server, "one-too-many")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert answer.json()["error"]["code"] == "overloaded"
        gate.set()
        for thread in threads:
            thread.join(120)
        assert request_span(server.trail, "cmpl-one-too-many").attributes["tokentrail.status"] == "error"
        assert {request_span(server.trail, f"cmpl-ok-{i}").attributes["tokentrail.status"] for i in range(2)} == {"ok"}


def test_what_outlasts_the_end_of_the_process_is_told(capsys):
    """The engine is inside a step when the grace period of one second is over."""
    gate, answers = Gate(), {}

    def ask(stream):
        answers[stream] = post(server, f"cut-{stream}", stream=stream)
        if len(answers) == 2:
            gate.set()

    threads = [threading.Thread(target=ask, args=(stream,)) for stream in (False, True)]
    with served(tiny_loader(gate=gate)) as server:
        server.until(lambda: server.service.ready)
        for thread in threads:
            thread.start()
        server.until(lambda: server.service._active == 2 and not server.service._admitting)
    for thread in threads:
        thread.join(120)
    told = capsys.readouterr().err
    assert "Cancel 2 running task(s)" in told
    assert "Traceback" not in told
    assert [answers[stream].status_code for stream in (False, True)] == [503, 200]
    for answer in answers.values():
        error = json.loads(answer.text.removeprefix("data: "))["error"]
        assert (error["code"], error["type"]) == ("engine_unavailable", "server_error")
        assert "longer than --shutdown-grace-s" in error["message"]
    for stream in (False, True):
        request = request_span(server.trail, f"cmpl-cut-{stream}").attributes
        assert (request["tokentrail.status"], request["error.type"]) == ("error", "engine_unavailable")


def test_a_list_of_prompts_is_one_request_that_waits():
    gate = Gate()
    with served(tiny_loader(gate=gate, max_seqs=1), max_waiting=2) as server:
        server.until(lambda: server.service.ready)
        answers = []
        bodies = [{"prompt": ["ab", "cd", "ef"]}, {"prompt": ["gh", "ij", "kl"]}, {"prompt": "mn"}]
        threads = [
            threading.Thread(target=lambda body=body: answers.append(post(server, "list", **body).status_code))
            for body in bodies
        ]
        for waiting, thread in enumerate(threads):
            thread.start()
            server.until(lambda: server.engine.scheduler.running or answers)
            server.until(lambda count=waiting: server.service.waiting == count or answers)
        assert httpx.get(f"{server.url}/metrics").text.count(
            'vllm:num_requests_waiting{engine="0",model_name="tiny"} 2.0'
        )
        gate.set()
        for thread in threads:
            thread.join(120)
        assert answers == [200] * 3, "the first one runs, and two may wait"


@pytest.mark.parametrize("stream", [False, True])
def test_a_failed_step_is_told_and_survived(stream):
    with served(tiny_loader()) as server:
        server.until(lambda: server.service.ready)
        server.engine._runner.failures.append(RuntimeError("bad kernel"))
        answer = post(server, "hit", stream=stream)
        error = json.loads(answer.text.removeprefix("data: "))["error"]
        assert answer.status_code == (200 if stream else 500)
        assert (error["code"], error["type"]) == ("engine_error", "server_error")
        assert "bad kernel" in error["message"]
        assert post(server, "next").status_code == 200
        assert server.service.ready
        assert request_span(server.trail, "cmpl-hit").attributes["tokentrail.status"] == Status.ERROR


def test_an_engine_whose_device_died_is_not_ready():
    with served(tiny_loader()) as server:
        server.until(lambda: server.service.ready)
        server.engine._runner.failures += [RuntimeError("bad kernel"), RuntimeError("dead device")]
        assert post(server, "hit").status_code == 500
        server.until(lambda: not server.service.ready)
        assert httpx.get(f"{server.url}/readyz").json() == {"status": "failed", "reason": "dead device"}
        assert post(server, "late").status_code == 503
