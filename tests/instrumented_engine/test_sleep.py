"""The model is unloaded after idle time or on demand, and loaded again by the next request."""

import ctypes
import threading
import weakref

import httpx
import numpy
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from instrumented_engine.core.loop import EngineLoop
from tokentrail.testing import MemoryTrail

from .server_support import MODEL, post, served, tiny_loader
from .support import Gate, make_engine, make_request, request_span


class Loads:
    """A loader that counts, and that keeps no engine alive."""

    def __init__(self, **engine):
        self.engines = []
        self.settings = []
        self.may_load = Gate()
        self.may_load.set()
        self._load = tiny_loader(**engine)

    def __call__(self, settings, observer):
        assert self.may_load.wait(120)
        with observer.cold_start(MODEL):
            loaded = self._load(settings, observer)
        self.engines.append(weakref.ref(loaded.engine))
        self.settings.append(settings)
        return loaded


def state(server):
    answers = [httpx.get(f"{server.url}/{path}") for path in ("readyz", "health", "ping")]
    assert len({(answer.status_code, answer.text) for answer in answers}) == 1
    sleeping = httpx.get(f"{server.url}/is_sleeping").json()["is_sleeping"]
    assert sleeping == (answers[0].json()["status"] == "sleeping")
    return answers[0].status_code, answers[0].json()["status"]


def sleep_states(server):
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    found = [line for line in lines if line.startswith("vllm:engine_sleep_state{")]
    return {line.split('sleep_state="')[1].split('"')[0]: float(line.split()[-1]) for line in found}


def test_an_idle_engine_is_unloaded_and_a_request_loads_it_again():
    loads = Loads()
    with served(loads, idle_unload_s=0.01) as server:
        server.until(lambda: server.service.asleep)
        server.until(lambda: server.service._loop.engine is None)
        assert state(server) == (200, "sleeping")
        assert sleep_states(server) == {"awake": 0, "weights_offloaded": 0, "discard_all": 1}
        server.until(lambda: loads.engines[0]() is None)

        loads.may_load.clear()
        answers = []
        thread = threading.Thread(target=lambda: answers.append(post(server, "waking")))
        thread.start()
        server.until(lambda: server.service.waiting == 1)
        assert state(server) == (200, "sleeping"), "while it loads again, too"
        loads.may_load.set()
        thread.join(120)
        assert answers[0].status_code == 200
        request = request_span(server.trail, "cmpl-waking")
        spans = server.trail.spans("tokentrail.phase", parent=request)
        first = min(spans, key=lambda span: (span.start_ns, span.end_ns))
        assert (first.attributes["tokentrail.phase.name"], first.start_ns) == ("cold_start", request.start_ns)
        server.until(lambda: server.service.asleep)
        assert len(server.trail.spans("tokentrail.cold_start")) >= 2
        assert loads.settings[1].threads == 3, "the number of threads is measured once"


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="needs glibc, which keeps what was freed")
def test_memory_that_loading_freed_goes_back_to_the_system():
    load, process = tiny_loader(), psutil.Process()
    kept, while_loading = [], []

    def wasteful(settings, observer):
        pieces = [numpy.ones(8192) for _ in range(3200)]  # 200 MiB, in pieces that the heap holds
        kept.append(pieces[-1])
        pieces.clear()
        while_loading.append(process.memory_info().rss)
        return load(settings, observer)

    with served(wasteful) as server:
        server.until(lambda: server.service.ready)
        assert process.memory_info().rss < while_loading[0] - (100 << 20)


def test_sleep_and_wake_up_on_demand():
    gate = Gate()
    loads = Loads(gate=gate)
    with served(loads) as server:
        server.until(lambda: server.service.ready)
        thread = threading.Thread(target=lambda: post(server, "slow"))
        thread.start()
        server.until(lambda: server.engine.scheduler.running)
        refused = httpx.post(f"{server.url}/sleep")
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "busy")
        gate.set()
        thread.join(120)
        server.until(lambda: server.service._active == 0)
        assert state(server) == (200, "ok")
        assert sleep_states(server)["awake"] == 1
        steps = server.engine.steps
        for _ in range(2):
            assert httpx.post(f"{server.url}/sleep").json() == {"is_sleeping": True}
        told = httpx.post(f"{server.url}/tokenize", json={"prompt": "a"})
        assert (told.status_code, told.json()["error"]["message"]) == (
            503,
            "The engine is not available: the model is unloaded; POST /wake_up loads it",
        )
        for _ in range(2):
            assert httpx.post(f"{server.url}/wake_up", timeout=120).json() == {"is_sleeping": False}
        assert state(server) == (200, "ok")
        assert server.engine.steps == steps > 0, "steps are numbered on"
        assert post(server, "again").status_code == 200
        assert len(loads.engines) <= 2


def test_requests_that_wait_for_the_model_are_counted_once_each():
    loads = Loads()
    with served(loads, max_waiting=3) as server:
        server.until(lambda: server.service.ready)
        httpx.post(f"{server.url}/sleep")
        server.until(lambda: server.service._loop.engine is None)
        loads.may_load.clear()
        answers, threads = [], []
        for number in range(3):
            threads.append(threading.Thread(target=lambda: answers.append(post(server, "waking").status_code)))
            threads[-1].start()
            server.until(lambda count=number + 1: server.service._admitting == count or answers)
        loads.may_load.set()
        for thread in threads:
            thread.join(120)
        assert answers == [200] * 3, "three may wait"


def test_idle_time_begins_with_the_last_wake_up():
    with served(Loads(), idle_unload_s=3600) as server:
        server.until(lambda: server.service._idle_timer is not None)
        for _ in range(2):
            before = server.service._idle_timer
            httpx.post(f"{server.url}/sleep")
            server.until(lambda: server.service._loop.engine is None)
            assert httpx.post(f"{server.url}/wake_up", timeout=120).status_code == 200
            assert before.cancelled(), "it would unload the model too soon"
            assert not server.service._idle_timer.cancelled()


def counters(server):
    """The counters of a scrape."""
    families = text_string_to_metric_families(httpx.get(f"{server.url}/metrics").text)
    samples = [sample for family in families if family.type == "counter" for sample in family.samples]
    return {(s.name, *sorted(s.labels.values())): s.value for s in samples if not s.name.endswith("_created")}


def test_no_counter_begins_again():
    with served(Loads(blocks=5, scheduling={"prefix_caching": True})) as server:
        server.until(lambda: server.service.ready)
        assert post(server, "both", prompt=["abcdef", "ghijkl"], max_tokens=8).status_code == 200
        assert post(server, "again", prompt="abcdef", max_tokens=2).status_code == 200
        server.until(lambda: server.service._active == 0)
        before = counters(server)
        for name in ("vllm:num_preemptions_total", "tokentrail_engine_steps_total", "vllm:prefix_cache_hits_total"):
            assert sum(value for key, value in before.items() if key[0] == name) > 0
        httpx.post(f"{server.url}/sleep")
        server.until(lambda: server.service._loop.engine is None)
        asleep = counters(server)
        assert {"vllm:num_preemptions_total", "vllm:prefix_cache_hits_total"} <= {key[0] for key in asleep}
        assert [key for key in asleep if asleep[key] < before[key]] == []
        assert httpx.post(f"{server.url}/wake_up", timeout=120).status_code == 200
        awake = counters(server)
        assert awake.keys() == before.keys()
        assert [key for key in before if awake[key] < before[key]] == []


def test_requests_keep_an_engine_awake():
    gate = Gate()
    with served(Loads(gate=gate), idle_unload_s=3600) as server:
        server.until(lambda: server.service.ready)
        assert server.service._idle_timer is not None
        assert not server.service._idle_timer.cancelled()
        thread = threading.Thread(target=lambda: post(server, "slow"))
        thread.start()
        server.until(lambda: server.service._active == 1)
        assert server.service._idle_timer.cancelled()
        gate.set()
        thread.join(120)
        server.until(lambda: not server.service._idle_timer.cancelled())


def test_an_engine_that_cannot_load_again_fails():
    loads = Loads()
    with served(loads) as server:
        server.until(lambda: server.service.ready)
        httpx.post(f"{server.url}/sleep")
        server.until(lambda: server.service._loop.engine is None)
        loads._load = None
        told = "'NoneType' object is not callable"
        for answer in (
            post(server, "late"),
            *(httpx.post(f"{server.url}/{path}", json={"prompt": "a"}) for path in ("wake_up", "tokenize")),
        ):
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (503, "engine_unavailable")
            assert told in error["message"]
        assert state(server)[0] == 503
        assert told in httpx.get(f"{server.url}/readyz").json()["reason"]


@pytest.mark.timeout(300)
def test_a_request_that_comes_before_the_engine_is_given_up():
    trail, events, busy = MemoryTrail(), [], threading.Event()
    gate = Gate()
    engine = make_engine(trail, gate=gate)
    request = make_request(trail, [1, 2], max_tokens=3)
    loop = EngineLoop(
        lambda: engine,
        deliver=lambda outputs: busy.set() if outputs[-1].final else None,
        on_ready=lambda error: events.append("ready"),
        on_unload=lambda: events.append("unloaded"),
    )
    loop.submit(request)
    loop.sleep()
    loop.wake()
    loop.start()
    gate.set()
    assert busy.wait(120)
    assert loop.close(120)
    assert events == ["ready", "ready"], "it was needed again before it was unloaded"


@pytest.mark.timeout(300)
def test_a_sleeping_engine_stops():
    asleep = threading.Event()
    loop = EngineLoop(lambda: make_engine(MemoryTrail()), deliver=print, on_ready=lambda _: None, on_unload=asleep.set)
    loop.start()
    loop.sleep()
    assert asleep.wait(120)
    assert loop.close(120)
