"""The number of threads, chosen from times that the test makes up, and a cache sized by a memory that it makes up."""

import pytest
import torch

from instrumented_engine import device as device_module
from instrumented_engine.core.observer import Observer
from instrumented_engine.device import TRIAL_S, Device, choose_threads, open_device
from instrumented_engine.model.errors import ModelError
from instrumented_engine.settings import Settings
from instrumented_engine.startup import load, set_waiting
from tokentrail.testing import MemoryTrail

from .test_model import save_tiny


def chosen(most, seconds):
    """The choice when a step with n threads takes `seconds(n)`, and the numbers of threads that were tried."""
    now, tried = [0.0], []

    def step():
        now[0] += seconds(tried[-1])

    return choose_threads(step, most, use=tried.append, clock=lambda: now[0]), tried


@pytest.mark.parametrize(
    ("most", "seconds", "expected"),
    [
        (8, lambda n: 0.1 / n, 8),
        (8, lambda n: 0.1, 1),
        (8, lambda n: 0.1 if n >= 4 else 0.2, 4),
        (2, lambda n: 0.1 if n == 2 else 0.109, 1),
        (2, lambda n: 0.1 if n == 2 else 0.111, 2),
        (6, lambda n: abs(n - 3) + 0.1, 3),
        (1, lambda n: 0.1, 1),
    ],
)
def test_the_fewest_threads_that_are_nearly_the_fastest(most, seconds, expected):
    choice, tried = chosen(most, seconds)
    assert choice == expected
    assert tried[-1] == expected, "torch computes with the choice"


def test_slow_steps_are_tried_once_each():
    assert chosen(4, lambda n: 10 / n)[1] == [4, 2, 1, 4]
    assert chosen(1, lambda n: TRIAL_S / 100)[1] == [1, 1], "nothing to compare"


def test_one_slow_step_decides_nothing():
    times = iter([0.5, 0.02] + [0.01, 0.02] * 100)
    assert chosen(2, lambda n: next(times))[0] == 2


def test_a_noisy_start_decides_nothing():
    """Two threads are slow most of the time, because the other core is taken away."""
    times = iter([0.06, 0.02, 0.06, 0.02, 0.01, 0.02] + [0.06, 0.02] * 100)
    assert chosen(2, lambda n: next(times))[0] == 2


def test_threads_spin_for_a_while_unless_the_environment_says_otherwise(monkeypatch):
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    assert set_waiting() == set_waiting() == "spin 10000"
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    assert set_waiting() == "spin 7"
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    assert set_waiting() == "passive"


class Memory:
    """A device with 100 bytes, of which weights have 20. A step takes 30 for a while; torch keeps 40 until asked."""

    def __init__(self, monkeypatch):
        self.kept = self.peak = 0
        for name, function in {
            "reset_peak_memory_stats": lambda _: setattr(self, "peak", 0),
            "memory_allocated": lambda _: 20,
            "max_memory_allocated": lambda _: 20 + self.peak,
            "empty_cache": lambda: setattr(self, "kept", 0),
            "mem_get_info": lambda _: (100 - 20 - self.kept, 100),
        }.items():
            monkeypatch.setattr(torch.cuda, name, function)

    def step(self):
        self.peak, self.kept = 30, 40


def test_the_cache_leaves_room_for_the_largest_step(monkeypatch):
    memory = Memory(monkeypatch)
    memory.peak = 77  # of the time before
    cuda = Device(torch.device("cuda", 0), torch.bfloat16)
    assert cuda.kv_blocks(Settings(), 1, memory.step) == int((80 - 30) * 0.95)
    assert cuda.kv_blocks(Settings(), 3, memory.step) == int((80 - 30) * 0.95) // 3
    assert cuda.kv_blocks(Settings(), 1000, memory.step) == 1
    assert cuda.kv_blocks(Settings(kv_blocks=7), 1, pytest.fail) == 7
    cpu = Device(torch.device("cpu"), torch.float32)
    assert cpu.kv_blocks(Settings(), 1 << 20, pytest.fail) == 1 << 10


def test_quantised_weights_stay_on_the_cpu_whose_kernels_they_need(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert open_device(Settings(quantization="int8")).target.type == "cpu"


@pytest.mark.parametrize(
    ("settings", "multiplies", "warned"),
    [
        (Settings(dtype="bfloat16", device="cpu"), False, True),
        (Settings(dtype="bfloat16", device="cpu"), True, False),
        (Settings(dtype="float32", device="cpu"), False, False),
        (Settings(quantization="int8", dtype="bfloat16", device="cpu"), False, False),
    ],
)
def test_a_cpu_that_cannot_multiply_bfloat16_is_warned_of(monkeypatch, caplog, settings, multiplies, warned):
    monkeypatch.setattr(device_module, "multiplies_bfloat16", lambda _: multiplies)
    open_device(settings)
    assert ("no instructions for it" in caplog.text) is warned


def test_a_cache_without_memory_is_told_with_the_flags_that_set_it(tmp_path, tokenizer, monkeypatch):
    save_tiny(tmp_path)
    monkeypatch.setattr("instrumented_engine.startup.load_tokenizer", lambda *_: tokenizer)
    with pytest.raises(ModelError, match=r"there is no memory for .* fewer of them with --kv-blocks and --swap-space"):
        load(Settings(model=str(tmp_path), device="cpu", threads=1, kv_blocks=10**12), Observer(MemoryTrail()))


@pytest.mark.parametrize("lack", [MemoryError("std::bad_alloc"), RuntimeError("can't allocate memory: 8 bytes")])
@pytest.mark.parametrize("whose", ["runner.ModelRunner", "draft.DraftModel"])
def test_a_cache_that_gets_no_memory_is_told_whatever_torch_raises(tmp_path, tokenizer, monkeypatch, whose, lack):
    def fail(*_, **__):
        raise lack

    save_tiny(tmp_path)
    monkeypatch.setattr("instrumented_engine.startup.load_tokenizer", lambda *_: tokenizer)
    monkeypatch.setattr(f"instrumented_engine.model.{whose}", fail)
    draft = {"speculative_model": str(tmp_path), "speculative_tokens": 2}
    settings = Settings(model=str(tmp_path), device="cpu", threads=1, kv_blocks=4, **draft)
    with pytest.raises(ModelError, match=r"for 4 KV-cache blocks of model and draft model, and 0 on the host: "):
        load(settings, Observer(MemoryTrail()))
    lack = RuntimeError("something else")
    with pytest.raises(RuntimeError, match="something else"):
        load(settings, Observer(MemoryTrail()))
