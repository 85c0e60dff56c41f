"""The work of a step, counted by hand, and the peaks with which it is compared."""

from types import SimpleNamespace

import pytest
import torch

from instrumented_engine.core.plan import Plan, StepResult
from instrumented_engine.model import linear
from instrumented_engine.model.llama import Llama
from instrumented_engine.model.runner import ModelRunner
from instrumented_engine.model.weights import open_model
from instrumented_engine.model.work import CPU, CUDA, Peaks, measure_peaks, work_of
from tokentrail.testing import MemoryTrail

from .support import make_engine, make_sequence, run_all
from .test_model import save_tiny

LAYER = 48 * 48 + 48 * 2 * 16 + 48 * 48 + 3 * 48 * 64
"""Query, key and value, output, and the three matrices of the MLP of the tiny model."""
HEAD = 48 * 97


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny(folder)
    file = open_model(folder)
    return Llama(file.config(), file.weights(torch.float32, torch.device("cpu")), 256)


def planned(*parts):
    """A plan of (tokens, computed before, scheduled now, draft)."""
    plan = Plan()
    for tokens, computed, count, draft in parts:
        sequence = make_sequence(MemoryTrail(), list(range(tokens)))
        sequence.num_computed_tokens = computed
        sequence.block_table = [0, 1, 2]
        plan.add(sequence, count, draft)
    return plan


@pytest.mark.parametrize(
    ("part", "rows", "sampled", "seen", "context"),
    [
        ((8, 7, 1, ()), 1, 1, 8, 8),
        ((8, 6, 2, ()), 2, 1, 7 + 8, 8),
        ((8, 0, 8, ()), 8, 1, 36, 8),
        ((8, 0, 5, ()), 5, 0, 15, 5),
        ((8, 7, 1, (3, 4)), 3, 3, 8 + 9 + 10, 10),
    ],
    ids=["decode", "the end of a prompt", "a prompt", "a part of a prompt", "a draft"],
)
def test_work_counted_by_hand(model, part, rows, sampled, seen, context):
    work = work_of(planned(part).batch, model.config, model.weights, 100)
    assert work.flops == 3 * (2 * LAYER * rows + 4 * 48 * seen) + 2 * HEAD * sampled
    assert work.read_bytes == 4 * (3 * LAYER + (HEAD if sampled else 0)) + 100 * context


def test_weights_are_read_once_and_contexts_each(model):
    one, two = (work_of(planned(*[(8, 7, 1, ())] * n).batch, model.config, model.weights, 100) for n in (1, 2))
    assert two.flops == 2 * one.flops
    assert two.read_bytes == one.read_bytes + 800


def test_a_step_says_how_long_its_work_takes_at_the_peak(model):
    runner = ModelRunner(model, kv_blocks=8, block_size=4, eos_ids=[])
    plan = planned((8, 7, 1, ()))
    assert runner.run(plan).compute_ns is runner.run(plan).memory_ns is None, "nobody measured the device"
    runner.peaks = Peaks(2e9, 5e8)
    work = work_of(plan.batch, model.config, model.weights, 3 * 2 * 2 * 8 * 4)
    result = runner.run(plan)
    assert (result.compute_ns, result.memory_ns) == (round(work.flops / 2), work.read_bytes * 2)


def test_parts_of_a_step_add_up():
    whole = StepResult([[1]])
    for part in (StepResult([]), StepResult([], compute_ns=3, memory_ns=5), StepResult([], compute_ns=4, memory_ns=6)):
        whole.add(part)
    assert (whole.compute_ns, whole.memory_ns, whole.device_ns) == (7, 11, None)


def test_the_trace_has_them(trail, monkeypatch):
    engine = make_engine(trail)
    known = engine._runner.run
    monkeypatch.setattr(engine._runner, "run", lambda plan: _with(known(plan), compute_ns=7, memory_ns=11))
    run_all(engine, [make_sequence(trail, [1, 2], max_tokens=2)])
    found = [span.attributes for span in trail.spans("tokentrail.step")]
    assert [(a["tokentrail.step.compute_ns"], a["tokentrail.step.memory_ns"]) for a in found] == [(7, 11)] * 2


def _with(result, **values):
    for name, value in values.items():
        setattr(result, name, value)
    return result


def test_a_peak_is_the_best_of_some_trials(monkeypatch):
    seconds = [0.1, 0.5, 0.25, 0.75, 0.05, 0.1, 0.2, 0.3]
    ticks = iter([time for duration in seconds for time in (0.0, duration)])
    monkeypatch.setattr(torch, "ones", lambda shape, **_: SimpleTensor())
    peaks = measure_peaks(torch.device("cpu"), torch.float32, clock=lambda: next(ticks))
    assert peaks == Peaks(2 * CPU.rows**3 / 0.25, CPU.read_bytes / 0.1)


def test_a_trial_on_a_gpu_is_long_beside_its_launch(monkeypatch):
    seconds = [0.1, 0.5, 0.25, 0.75, 0.05, 0.1, 0.2, 0.3]
    ticks = iter([time for duration in seconds for time in (0.0, duration)])
    monkeypatch.setattr(torch, "ones", lambda shape, **_: SimpleTensor())
    peaks = measure_peaks(torch.device("cuda", 0), torch.bfloat16, clock=lambda: next(ticks))
    assert peaks == Peaks(2 * CUDA.rows**3 * CUDA.repeats / 0.25, CUDA.read_bytes * CUDA.repeats / 0.1)


def test_the_peak_is_that_of_the_dtype_of_products(monkeypatch):
    dtypes = []
    monkeypatch.setattr(torch, "ones", lambda shape, **given: dtypes.append(given["dtype"]) or SimpleTensor())
    for fast in (True, False):
        monkeypatch.setattr(linear, "multiplies_bfloat16", lambda _, fast=fast: fast)
        measure_peaks(torch.device("cpu"), torch.bfloat16)
    assert dtypes[::2] == [torch.bfloat16, torch.float32]


class SimpleTensor(SimpleNamespace):
    """Counts nothing: its products and sums take the time that the test's clock says."""

    def __matmul__(self, _):
        return torch.zeros(1)

    def sum(self):
        return torch.zeros(1)
