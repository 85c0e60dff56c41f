"""CUDA graphs, captured by a stand-in that computes the same operations again on the same tensors."""

import logging
from typing import Any

import pytest
import torch

pytest.importorskip("triton")  # torch brings it for CUDA alone

from instrumented_engine.core.block_manager import BlockManager
from instrumented_engine.core.drafter import PromptLookup
from instrumented_engine.core.engine import Engine
from instrumented_engine.core.observer import Observer
from instrumented_engine.core.scheduler import Scheduler
from instrumented_engine.device import Device
from instrumented_engine.model.batch import Rows
from instrumented_engine.model.graphs import sizes
from instrumented_engine.model.llama import Llama
from instrumented_engine.model.paged import TritonOperations
from instrumented_engine.model.runner import ModelRunner
from instrumented_engine.model.weights import open_model
from instrumented_engine.settings import Settings
from instrumented_engine.startup import load
from tokentrail.testing import MemoryTrail

from . import fake_graphs
from .support import make_sequence, run_all
from .test_model import save_tiny

CPU = torch.device("cpu")
PROMPTS = [[5, 6, 7, 8, 9, 10, 5], [1], [40, 41] * 5, [20, 21, 22]]


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """(configuration, weights) of a tiny model."""
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny(folder, num_hidden_layers=2)
    file = open_model(folder)
    return file.config(), file.weights(torch.float32, CPU)


def engine_of(weights, trail, *, paged, blocks=40, **scheduling):
    runner = ModelRunner(
        Llama(*weights, 64, operations=TritonOperations() if paged else None),
        kv_blocks=blocks,
        block_size=4,
        eos_ids=[],
    )
    scheduler = Scheduler(BlockManager(blocks, 4), max_seqs=5, max_batched_tokens=12, **scheduling)
    return Engine(scheduler, runner, Observer(trail), eos_ids=[])


def answers(engine, trail):
    sequences = [make_sequence(trail, prompt, max_tokens=7 + i) for i, prompt in enumerate(PROMPTS)]
    found = run_all(engine, sequences)
    return [found[sequence][0] for sequence in sequences]


def test_sizes():
    assert sizes(1) == [1]
    assert sizes(2) == [1, 2]
    assert sizes(7) == [1, 2, 4, 7]
    assert sizes(20) == [1, 2, 4, 8, 16, 20]
    assert sizes(1024) == [1, 2, 4, *range(8, 257, 8)]


@pytest.mark.parametrize(
    "technique",
    [{}, {"blocks": 11, "watermark_blocks": 0}, {"prefix_caching": True, "speculative_tokens": 3}],
    ids=["plain", "pressure", "speculation"],
)
def test_answers_as_without_graphs(weights, monkeypatch, technique):
    """Texts grow over several blocks, end one by one, and are preempted, between replays for 1, 2, 4 and 5 texts."""
    if "speculative_tokens" in technique:
        technique = technique | {"drafter": PromptLookup(1)}
    expected = answers(engine_of(weights, MemoryTrail(), paged=False, **technique), MemoryTrail())
    replays, trail = fake_graphs.install(monkeypatch), MemoryTrail()
    engine = engine_of(weights, trail, paged=True, **technique)
    longest = max(len(prompt) + 7 + i for i, prompt in enumerate(PROMPTS))
    assert engine._runner.capture_graphs(max_seqs=5, max_tokens=longest) == [1, 2, 4, 5]
    assert replays == [1, 2, 4, 5], "each graph is tried"
    del replays[:]
    assert answers(engine, trail) == expected
    assert {1, 2, 4} >= set(replays)
    assert len(set(replays)) > 1
    assert (engine._observer.latencies.preemptions > 0) == ("blocks" in technique)


def test_a_graph_computes_single_tokens_that_are_sampled(weights, monkeypatch):
    fake_graphs.install(monkeypatch)
    engine = engine_of(weights, MemoryTrail(), paged=True)
    engine._runner.capture_graphs(max_seqs=5, max_tokens=64)
    graphs, row = engine._runner._graphs, Rows([1], 3, [0], [0])
    assert [graphs.size([row] * count) for count in (1, 2, 3, 4, 5, 6)] == [1, 2, 4, 4, 5, None]
    assert graphs.size([row, Rows([1, 2], 3, [0, 1], [1])]) is None
    assert graphs.size([row, row._replace(sampled=[])]) is None
    assert graphs.size([row, row._replace(prompt=[0])]) is None


def test_padding_is_stored_in_no_text(weights, monkeypatch):
    fake_graphs.install(monkeypatch)
    runner = engine_of(weights, MemoryTrail(), paged=True)._runner
    runner.capture_graphs(max_seqs=5, max_tokens=64)
    with torch.inference_mode():
        runner._graphs.run([Rows([9], 2, [index], [0]) for index in range(4)], 4)
        before = runner._cache.clone()
        runner._graphs.run([Rows([9], 5, [7, 30], [0])], 4)
    changed = (runner._cache != before).any(dim=-1).any(dim=-1).any(dim=0).nonzero().tolist()
    assert [30, 1] in changed
    assert {block for block, _ in changed} <= {30, 40}


def test_a_step_says_which_graph_computed_it(weights, monkeypatch):
    fake_graphs.install(monkeypatch)
    trail = MemoryTrail()
    engine = engine_of(weights, trail, paged=True)
    engine._runner.capture_graphs(max_seqs=5, max_tokens=64)
    run_all(engine, [make_sequence(trail, [1, 2, 3], max_tokens=3) for _ in range(3)])
    steps = [span.attributes.get("tokentrail.step.graph_rows") for span in trail.spans("tokentrail.step")]
    assert steps == [None, 4, 4]


def test_graphs_that_cannot_be_captured_are_not_used(weights, monkeypatch, caplog):
    def capture(forward, pool):
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing")

    monkeypatch.setattr("instrumented_engine.model.graphs.capture", capture)
    engine = engine_of(weights, MemoryTrail(), paged=True)
    with caplog.at_level(logging.WARNING):
        assert engine._runner.capture_graphs(max_seqs=5, max_tokens=64) == []
    assert "steps are computed without CUDA graphs: CUDA error: operation not permitted" in caplog.text
    assert engine._runner._graphs is None


def test_graphs_that_compute_something_else_are_not_used(weights, monkeypatch, caplog):
    def capture(forward, pool):
        return lambda: None, forward(), pool  # a replay that leaves the states of the capture

    fake_graphs.install(monkeypatch)
    monkeypatch.setattr("instrumented_engine.model.graphs.capture", capture)
    engine = engine_of(weights, MemoryTrail(), paged=True)
    with caplog.at_level(logging.WARNING):
        assert engine._runner.capture_graphs(max_seqs=5, max_tokens=64) == []
    assert "the graph for 1 sequences computes other states than the model" in caplog.text
    assert engine._runner._graphs is None


@pytest.mark.parametrize(
    ("settings", "found"),
    [({}, "1 2 3"), ({"enforce_eager": True}, "none"), ({"attention_backend": "sdpa"}, "none")],
    ids=["graphs", "eager", "without the kernel"],
)
def test_an_engine_that_starts_captures_graphs(tmp_path, monkeypatch, tokenizer, settings, found):
    """Kernels are compiled before, for the draft model's heads too."""
    fake_graphs.install(monkeypatch)
    compiled = []
    compile_kernels = ModelRunner.compile_kernels
    monkeypatch.setattr(
        ModelRunner, "compile_kernels", lambda self, n: (compiled.append((self._model, n)), compile_kernels(self, n))
    )
    monkeypatch.setattr("instrumented_engine.startup.load_tokenizer", lambda *_: tokenizer)
    monkeypatch.setattr(Device, "captures_graphs", True)
    save_tiny(tmp_path)
    options = {"device": "cpu", "attention_backend": "triton", "threads": 1, "max_seqs": 3, "max_batched_tokens": 20}
    drafts = {"speculative_tokens": 2, "speculative_model": str(tmp_path), "speculative_keep_layers": "1"}
    trail = MemoryTrail()
    loaded = load(Settings(model=str(tmp_path), **options | drafts | settings), Observer(trail))
    engine: Any = loaded.engine
    assert loaded.facts["cuda_graphs"] == found
    phases = [span.name.rpartition(".")[2] for span in trail.spans() if "cold_start." in span.name]
    assert ("capture_graphs" in phases) == (found != "none")
    models = [engine._runner._model, engine.scheduler._drafter._model]
    assert engine.scheduler._drafter._packer._paged == ("attention_backend" not in settings)
    assert compiled == ([] if "attention_backend" in settings else [(model, 3) for model in models])
