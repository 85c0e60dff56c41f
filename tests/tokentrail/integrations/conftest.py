"""vLLM's fakes with the plugin loaded on top, on a clock that the test moves."""

import asyncio
import contextlib
import importlib
import sys
from types import SimpleNamespace

import pytest

from tests.tokentrail.integrations import fake_vllm
from tests.tokentrail.support import MS, T0
from tokentrail import semconv
from tokentrail.integrations import recorder
from tokentrail.testing import ManualClock, MemoryTrail

ZERO_S = 1_000.0
"""The engine core's monotonic seconds at `T0`."""


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def trails():
    """The trails that the recorder has opened, by the number of their engine."""
    return {}


@pytest.fixture(name="recorder")
def engine_recorder(trails, clock):
    def open_trail(index):
        trails[index] = MemoryTrail(clock=clock)
        return trails[index]

    return recorder.EngineRecorder("vllm", "m", open_trail, clock)


@contextlib.contextmanager
def fresh_plugin(monkeypatch):
    """Loads the plugin on fresh fakes."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector.invalid")
    monkeypatch.delenv("TOKENTRAIL_VLLM", raising=False)

    def load(signatures=None):
        fake = fake_vllm.install(monkeypatch, signatures)
        monkeypatch.delitem(sys.modules, "tokentrail.integrations.vllm", raising=False)
        return importlib.import_module("tokentrail.integrations.vllm"), fake

    yield load
    sys.modules.pop("tokentrail.integrations.vllm", None)
    recorder.activate(None)


@pytest.fixture
def plugin(monkeypatch):
    with fresh_plugin(monkeypatch) as load:
        yield load


class Vllm:
    """A vLLM of fakes with the plugin. Times are milliseconds after `T0`."""

    def __init__(self, plugin, monkeypatch, clock, **given):
        self.plugin, self.fake = plugin()
        self.clock = clock
        self.trails, self.instances = [], []
        monkeypatch.setattr(self.plugin, "now_ns", clock)
        monkeypatch.setattr(self.plugin, "time", SimpleNamespace(time_ns=clock))
        monkeypatch.setattr(self.plugin, "_MONOTONIC_NS", T0 - int(ZERO_S * 1e9))
        monkeypatch.setattr(self.plugin, "engine_trail", self._trail)
        monkeypatch.setattr(self.plugin, "process_start_ns", lambda: T0 - 9_000 * MS)
        monkeypatch.setattr(self.plugin, "_LOADED_NS", T0 - 8_000 * MS)
        self.loggers = [self.plugin.StatLogger(fake_vllm.config(**given), 0)]
        self.hooks = self.loggers[0]._hooks
        if self.hooks is not None:
            self.hooks.recorder._clock = clock
        self.processor = self.fake.OutputProcessor()
        self.llm = self.fake.AsyncLLM(self.processor)

    def _trail(self, engine, index, instance):
        assert (engine, index) == ("vllm", len(self.trails))
        self.instances.append(instance)
        self.trails.append(MemoryTrail(clock=self.clock, resource={semconv.ENGINE: engine}))
        return self.trails[-1]

    def at(self, ms):
        self.clock.now = T0 + int(ms * MS)

    def wall(self, ms):
        return (T0 + int(ms * MS)) / 1e9

    def core(self, ms):
        return ZERO_S + ms / 1e3

    def request(self, key="chatcmpl-1-0a1b2c3d", external="chatcmpl-1", at=0, **given):
        known = {
            "request_id": key, "external_req_id": external, "arrival_time": self.wall(at), "prompt_token_ids": [1] * 7,
            "sampling_params": SimpleNamespace(max_tokens=9, temperature=0.5, top_p=1.0, top_k=0,
                                               output_kind=SimpleNamespace(name="DELTA")),
        }  # fmt: skip
        return self.fake.EngineCoreRequest(**known | given)

    def add(self, key="chatcmpl-1-0a1b2c3d", external="chatcmpl-1", at=0, **given):
        self.at(at)
        headers = given.pop("trace_headers", None)
        asyncio.run(
            self.llm.add_request(external, self.request(key, external, at, **given), None, trace_headers=headers)
        )
        return key

    def output(self, key, tokens=1, finish=None, events=(), **given):
        reason = None if finish is None else self.fake.FinishReason[finish]
        made = [
            self.fake.EngineCoreEvent(type=self.fake.EngineCoreEventType[name], timestamp=self.core(ms))
            for name, ms in events
        ]
        return self.fake.EngineCoreOutput(
            request_id=key, new_token_ids=[5] * tokens, finish_reason=reason, events=made or None, **given
        )

    def step(self, core_ms, *outputs, front_ms=None, stats=True, engine=0, core_s=None, slices=None, **given):
        """A step that ends at `core_ms` in the engine core and reaches the front end at `front_ms`."""
        front = core_ms + 1 if front_ms is None else front_ms
        self.at(front)
        new = sum(len(output.new_token_ids) for output in outputs)
        iteration = SimpleNamespace(
            iteration_timestamp=self.wall(front), num_generation_tokens=new,
            time_to_first_tokens_iter=[0.1] * sum(any(e.type == 2 for e in o.events or ()) for o in outputs),
        )  # fmt: skip
        stamp = self.core(core_ms) if core_s is None else core_s
        results = [
            self.processor.process_outputs(list(part), stamp, iteration)
            for part in (slices or ([outputs] if outputs else []))
        ]
        self.at(front + 0.5)
        known = {"num_running_reqs": 1, "num_waiting_reqs": 0, "kv_cache_usage": 0.5}
        scheduler = SimpleNamespace(**known | given) if stats else None
        self.loggers[0].record(scheduler, iteration if outputs else None, mm_cache_stats=None, engine_idx=engine)
        return results

    def rows(self, trail=0):
        return [span for span in self.trails[trail].spans() if semconv.OPERATION_NAME in span.attributes
                and span.name != semconv.OPEN_SPAN]  # fmt: skip

    def tokens(self, row, trail=0):
        found = self.trails[trail].spans(semconv.TOKEN_SPAN)
        return [round(s.duration_ns / MS, 2) for s in found if (s.trace_id, s.parent_id) == (row.trace_id, row.span_id)]

    def phases(self, row, trail=0):
        found = sorted(self.trails[trail].spans(semconv.PHASE_SPAN), key=lambda span: span.start_ns)
        return [
            (s.attributes[semconv.PHASE_NAME], round(s.duration_ns / MS, 2))
            for s in found
            if s.parent_id == row.span_id
        ]

    def steps(self, trail=0):
        return sorted(self.trails[trail].spans(semconv.STEP_SPAN), key=lambda span: span.attributes[semconv.STEP])


@pytest.fixture
def vllm(plugin, monkeypatch, clock):
    return lambda **given: Vllm(plugin, monkeypatch, clock, **given)
