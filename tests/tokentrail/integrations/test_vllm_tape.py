"""The calls of a real vLLM 0.32, replayed on the fakes: the rows are those that the clients and vLLM counted.

`python -m benchmarks.vllm_inside --tape` records them. Each API server has a tape of its own.
"""

import gzip
import json
import statistics
from collections import Counter
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.tokentrail.integrations import fake_vllm
from tests.tokentrail.integrations.conftest import Vllm, fresh_plugin
from tokentrail import semconv
from tokentrail.testing import ManualClock

TAPES = Path(__file__).parents[2] / "data" / "vllm-hooks"
RUNS = ("pressure", "mixed", "speculative", "data_parallel", "api_servers", "death")


def load(name):
    files = [TAPES / f"{name}.jsonl.gz", *TAPES.glob(f"{name}-[0-9].jsonl.gz")]
    tapes = [[json.loads(line) for line in gzip.decompress(file.read_bytes()).splitlines()] for file in files]
    return tapes, json.loads((TAPES / f"{name}-truth.json").read_text())


class Player:
    """Plays a tape to the hooks. The clocks are those of the tape."""

    def __init__(self, v, monkeypatch, tape):
        self.v = v
        self.answers = Counter(given[3].partition("_")[2] for given in tape if given[0] == "add_request")
        wall, monotonic = tape[0][1:3]
        monkeypatch.setattr(v.plugin, "_MONOTONIC_NS", int((wall - monotonic) * 1e9))
        v.clock.now = int(wall * 1e9)
        for name, called, _, *given in tape:
            v.clock.now = max(int(called * 1e9), v.clock.now)
            getattr(self, name)(*given)

    def add_request(self, key, external, arrival, prompt_tokens, asked):
        names = ("max_tokens", "temperature", "top_p", "top_k")
        params = SimpleNamespace(**dict(zip(names, asked, strict=False)), output_kind=SimpleNamespace(name=asked[-1]))
        given = {"arrival_time": arrival, "prompt_token_ids": [1] * prompt_tokens, "sampling_params": params}
        index, _, parent = key.partition("_")  # 1_chatcmpl-5: the second of several answers
        several = SimpleNamespace(request_id=parent, n=self.answers[parent]) if parent else None
        request = self.v.request(key, external, **given)
        self.v.processor.add_request(request, None, several, int(index) if parent else 0)

    def process_outputs(self, stamp, iteration, stopped, told):
        fake = self.v.fake
        outputs = []
        for key, tokens, finish, events, cached in ([*one, *[None] * (5 - len(one))] for one in told):
            outputs.append(fake.EngineCoreOutput(
                request_id=key, new_token_ids=[5] * tokens, cut_to=tokens if key in stopped else None,
                finish_reason=finish and fake.FinishReason[finish],
                events=[fake.EngineCoreEvent(type=fake.EngineCoreEventType[n], timestamp=at) for n, at in events or ()],
                prefill_stats=SimpleNamespace(num_cached_tokens=cached or 0) if events else None,
            ))  # fmt: skip
        self.stats = SimpleNamespace(
            iteration_timestamp=iteration, num_generation_tokens=sum(len(o.new_token_ids) for o in outputs)
        )
        self.v.processor.process_outputs(outputs, stamp, self.stats)

    def abort_requests(self, keys, error):
        self.v.processor.abort_requests(keys)

    def propagate_error(self, error):
        self.v.processor.propagate_error(type(error, (Exception,), {})())

    def record(self, load, with_iteration, firsts, engine):
        scheduler = None
        if load is not None:
            names = ("num_running_reqs", "num_waiting_reqs", "kv_cache_usage")
            scheduler = SimpleNamespace(**dict(zip(names, load, strict=True)))
        if with_iteration:
            self.stats.time_to_first_tokens_iter = [0] * firsts
        self.v.loggers[0].record(scheduler, self.stats if with_iteration else None, engine_idx=engine)


class Played:
    """The rows and spans of all API servers of a run, and the counts of their clients and of vLLM."""

    def __init__(self, servers, truth, steps):
        self.truth = truth
        self.steps = steps
        self.trails = [trail for v in servers for trail in v.trails]
        self.rows_of = [(trail, v.rows(number)) for v in servers for number, trail in enumerate(v.trails)]
        self.rows = [row for _, rows in self.rows_of for row in rows]
        self.metrics = truth["metrics"]

    def spans(self, name):
        return [span for trail in self.trails for span in trail.spans(name)]


@pytest.fixture(scope="module", params=RUNS)
def played(request):
    """Each tape is played once. Its rows and spans stay."""
    with pytest.MonkeyPatch.context() as monkeypatch, fresh_plugin(monkeypatch) as plugin:
        return play(*load(request.param), plugin, monkeypatch)


def play(tapes, truth, plugin, monkeypatch):
    clock = ManualClock()
    engines = {given[-1] for tape in tapes for given in tape if given[0] == "record"}
    servers = []
    for rank, tape in enumerate(tapes):
        parallel = SimpleNamespace(_api_process_count=len(tapes), _api_process_rank=rank)
        v = Vllm(plugin, monkeypatch, clock, parallel_config=parallel)
        v.loggers += [v.plugin.StatLogger(fake_vllm.config(), index) for index in sorted(engines - {0})]
        Player(v, monkeypatch, tape)
        servers.append(v)
    steps = sum(given[0] == "record" for tape in tapes for given in tape)
    return Played(servers, truth, steps)


def test_every_request_and_token_of_the_clients_is_there(played):
    rows = {}
    for row in played.rows:
        rows.setdefault(row.attributes[semconv.RESPONSE_ID], []).append(row)
    assert played.truth["calls"]
    for call in played.truth["calls"]:
        found = rows.pop(call["request_id"])
        assert len(found) == call["rows"], call
        assert {row.attributes[semconv.STATUS] for row in found} == {call["status"]}
        said = sum(row.attributes[semconv.OUTPUT_TOKENS] for row in found)
        assert said == call["output_tokens"] if call["status"] == "ok" else said >= call["output_tokens"]
        assert {row.attributes[semconv.INPUT_TOKENS] for row in found} == set(call["input_tokens"])
    assert rows == {}


def test_counts_and_times_are_those_of_vllm_s_own_metrics(played):
    rows, metrics = played.rows, played.metrics
    if not metrics:
        assert {row.attributes.get(semconv.ERROR_TYPE) for row in rows} == {"EngineDeadError"}
        return
    assert sum(row.attributes[semconv.OUTPUT_TOKENS] for row in rows) == metrics["generation_tokens_total"]
    prompts = [row.attributes[semconv.INPUT_TOKENS] * row.attributes.get(semconv.CHOICE_COUNT, 1) for row in rows]
    assert sum(prompts) == metrics["prompt_tokens_total"]
    assert sum(row.attributes.get(semconv.PREEMPTIONS, 0) for row in rows) == metrics["num_preemptions_total"]
    tokens = played.spans(semconv.TOKEN_SPAN)  # vLLM counts each answer of a request for itself
    first = [token.duration_ns / 1e9 for token in tokens if token.token_index == 0]
    assert len(first) == metrics["time_to_first_token_seconds_count"]
    assert sum(first) == pytest.approx(metrics["time_to_first_token_seconds_sum"], abs=1e-4)
    e2e = Counter()
    for trail, found in played.rows_of:  # each trail counts its span ids from 1
        good = {row.span_id for row in found if row.attributes[semconv.STATUS] == "ok"}
        for token in trail.spans(semconv.TOKEN_SPAN):
            if token.parent_id in good:
                e2e[id(trail), token.parent_id, token.attributes.get(semconv.CHOICE_INDEX)] += token.duration_ns
    assert len(e2e) == metrics["e2e_request_latency_seconds_count"]
    assert sum(e2e.values()) / 1e9 == pytest.approx(metrics["e2e_request_latency_seconds_sum"], abs=1e-3)


def test_phases_partition_every_request(played):
    for trail, rows in played.rows_of:
        parts = Counter()
        for span in trail.spans(semconv.PHASE_SPAN):
            parts[span.parent_id] += span.duration_ns
        assert [parts[row.span_id] for row in rows] == [row.duration_ns for row in rows]


def test_steps_follow_each_other_and_tokens_reach_the_front_end_after_them(played):
    assert len(played.spans(semconv.STEP_SPAN)) == played.steps
    delays = []
    for trail in played.trails:
        steps = sorted(trail.spans(semconv.STEP_SPAN), key=lambda span: span.attributes[semconv.STEP])
        assert all(here.end_ns <= there.end_ns for here, there in pairwise(steps))
        ends = {step.attributes[semconv.STEP]: step.end_ns for step in steps}
        delays += [
            (token.end_ns - ends[token.attributes[semconv.STEP]]) / 1e6
            for token in trail.spans(semconv.TOKEN_SPAN)
            if semconv.STEP in token.attributes
        ]
        loads = [step.attributes for step in steps if semconv.STEP_KV_USED in step.attributes]
        assert all(load[semconv.STEP_KV_USED] <= load[semconv.STEP_KV_TOTAL] for load in loads)
    assert min(delays) >= 0
    assert statistics.median(delays) > 0.1
