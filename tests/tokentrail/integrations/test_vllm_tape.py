"""The calls of a real vLLM 0.32, replayed on the fakes: the rows are those that the clients and vLLM counted."""

import gzip
import json
import statistics
from collections import Counter
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from tokentrail import semconv

TAPES = Path(__file__).parents[2] / "data" / "vllm-hooks"


def load(name):
    lines = gzip.decompress((TAPES / f"{name}.jsonl.gz").read_bytes()).decode().splitlines()
    return [json.loads(line) for line in lines], json.loads((TAPES / f"{name}-truth.json").read_text())


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

    def record(self, load, with_iteration, firsts, engine):
        scheduler = None
        if load is not None:
            names = ("num_running_reqs", "num_waiting_reqs", "kv_cache_usage")
            scheduler = SimpleNamespace(**dict(zip(names, load, strict=True)))
        if with_iteration:
            self.stats.time_to_first_tokens_iter = [0] * firsts
        self.v.loggers[0].record(scheduler, self.stats if with_iteration else None, engine_idx=engine)


@pytest.fixture(params=["pressure", "mixed"])
def played(request, vllm, monkeypatch):
    v = vllm()
    tape, truth = load(request.param)
    Player(v, monkeypatch, tape)
    return v, truth


def test_every_request_and_token_of_the_clients_is_there(played):
    v, truth = played
    rows = {}
    for row in v.rows():
        rows.setdefault(row.attributes[semconv.RESPONSE_ID], []).append(row)
    assert truth["calls"]
    for call in truth["calls"]:
        found = rows.pop(call["request_id"])
        assert len(found) == call["rows"], call
        assert {row.attributes[semconv.STATUS] for row in found} == {call["status"]}
        said = sum(row.attributes[semconv.OUTPUT_TOKENS] for row in found)
        assert said == call["output_tokens"] if call["status"] == "ok" else said >= call["output_tokens"]
        assert {row.attributes[semconv.INPUT_TOKENS] for row in found} == set(call["input_tokens"])
    assert rows == {}


def test_counts_and_times_are_those_of_vllm_s_own_metrics(played):
    v, truth = played
    rows, metrics = v.rows(), truth["metrics"]
    assert sum(row.attributes[semconv.OUTPUT_TOKENS] for row in rows) == metrics["generation_tokens_total"]
    prompts = [row.attributes[semconv.INPUT_TOKENS] * row.attributes.get(semconv.CHOICE_COUNT, 1) for row in rows]
    assert sum(prompts) == metrics["prompt_tokens_total"]
    assert sum(row.attributes.get(semconv.PREEMPTIONS, 0) for row in rows) == metrics["num_preemptions_total"]
    tokens = v.trails[0].spans(semconv.TOKEN_SPAN)  # vLLM counts each answer of a request for itself
    first = [token.duration_ns / 1e9 for token in tokens if token.token_index == 0]
    assert len(first) == metrics["time_to_first_token_seconds_count"]
    assert sum(first) == pytest.approx(metrics["time_to_first_token_seconds_sum"], abs=1e-4)
    good = {row.span_id for row in rows if row.attributes[semconv.STATUS] == "ok"}
    e2e = Counter()
    for token in tokens:
        if token.parent_id in good:
            e2e[token.parent_id, token.attributes.get(semconv.CHOICE_INDEX)] += token.duration_ns
    assert len(e2e) == metrics["e2e_request_latency_seconds_count"]
    assert sum(e2e.values()) / 1e9 == pytest.approx(metrics["e2e_request_latency_seconds_sum"], abs=1e-3)


def test_phases_partition_every_request(played):
    v, _ = played
    parts = {}
    for span in v.trails[0].spans(semconv.PHASE_SPAN):
        parts[span.parent_id] = parts.get(span.parent_id, 0) + span.duration_ns
    rows = v.rows()
    assert [parts[row.span_id] for row in rows] == [row.duration_ns for row in rows]


def test_steps_follow_each_other_and_tokens_reach_the_front_end_after_them(played):
    v, truth = played
    steps = v.steps()
    assert len(steps) == truth["steps"]
    assert all(here.end_ns <= there.end_ns for here, there in pairwise(steps))
    ends = {step.attributes[semconv.STEP]: step.end_ns for step in steps}
    delays = [(t.end_ns - ends[t.attributes[semconv.STEP]]) / 1e6 for t in v.trails[0].spans(semconv.TOKEN_SPAN)]
    assert min(delays) >= 0
    assert 0.1 < statistics.median(delays) < 20
    assert max(step.attributes[semconv.STEP_KV_USED] for step in steps) <= steps[0].attributes[semconv.STEP_KV_TOTAL]
