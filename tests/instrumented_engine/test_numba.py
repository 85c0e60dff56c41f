"""Numba's kernels against torch's operations, and the engine that computes with them."""

import logging
import math
import os
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest
import torch

from instrumented_engine.core.observer import Observer
from instrumented_engine.device import Device
from instrumented_engine.model import numba_kernels, numba_operations
from instrumented_engine.model.batch import Packer, Rows
from instrumented_engine.model.errors import ModelError
from instrumented_engine.model.kv_format import FloatFormat, kv_format
from instrumented_engine.model.llama import Llama, LlamaConfig
from instrumented_engine.model.numba_operations import NumbaOperations
from instrumented_engine.model.operations import Operations
from instrumented_engine.model.weights import open_model
from instrumented_engine.settings import Settings
from instrumented_engine.startup import load
from tokentrail.testing import MemoryTrail

from .support import make_sequence, run_all
from .test_model import save_tiny

CPU = torch.device("cpu")
ALONE, SHARED = sys.maxsize, 0
SHAPES = {
    "grouped heads": (9, 3, 64, 16, torch.float32, ALONE),
    "grouped heads, shared": (9, 3, 64, 16, torch.float32, SHARED),
    "odd heads and blocks": (3, 3, 20, 5, torch.float32, ALONE),
    "one key head, bfloat16": (3, 1, 8, 4, torch.bfloat16, ALONE),
    "one key head, bfloat16, shared": (3, 1, 8, 4, torch.bfloat16, SHARED),
}
"""Each number of heads to a key head, and each size of a head, is compiled: 3 and 8 are those of `save_tiny`."""
CLOSE = {torch.float32: {"atol": 2e-5, "rtol": 1e-5}, torch.bfloat16: {"atol": 2e-2, "rtol": 1e-2}}


def operations(shared_work=ALONE, heads=6, kv_heads=2, head_dim=8, dtype=torch.float32, *, paged=True):
    return NumbaOperations(heads, kv_heads, head_dim, dtype, paged=paged, shared_work=shared_work)


def some(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("shared_work", [ALONE, SHARED], ids=["alone", "shared"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "size"), [(1, 64), (3, 37), (70, 20)])
def test_rows_as_torch(rows, size, dtype, shared_work):
    ours, theirs = operations(shared_work, dtype=dtype), Operations()
    x, delta, weight = some(rows, size, dtype=dtype), some(rows, size, seed=1, dtype=dtype), some(size, dtype=dtype)
    found, expected = x.clone(), x.clone()
    for eps in (1e-5, 0.5):
        norm = ours.add_norm(found, delta, weight, eps)
        torch.testing.assert_close(norm, theirs.add_norm(expected, delta, weight, eps), **CLOSE[dtype])
        assert found.equal(expected), "the sum is rounded as torch rounds it"
    gate_up = 4 * some(rows, 2 * size, seed=2, dtype=dtype)
    torch.testing.assert_close(ours.gate(gate_up), theirs.gate(gate_up), **CLOSE[dtype])


@pytest.mark.parametrize("shape", SHAPES)
def test_attention_as_torch(shape):
    """Contexts end before, at and behind the end of a block, and blocks lie anywhere in the cache."""
    heads, kv_heads, head_dim, size, dtype, shared_work = SHAPES[shape]
    ours, theirs = operations(shared_work, heads, kv_heads, head_dim, dtype), Operations()
    lengths = [1, size - 1, size, size + 1, 5 * size + 2]
    tables = torch.randperm(40, generator=torch.Generator().manual_seed(3))[:30].view(5, 6).tolist()
    rows = [Rows([0], length - 1, table, [0]) for length, table in zip(lengths, tables, strict=True)]
    results = []
    for using in (ours, theirs):
        batch = Packer(size, CPU, dtype, paged=using.paged).pack(rows)
        cache = some(40, size, 2 * kv_heads, head_dim, dtype=dtype)
        qkv = some(5, heads + 2 * kv_heads, head_dim, seed=1, dtype=dtype)
        angles = some(5, 1, head_dim // 2, seed=2)
        using.rotate(qkv[:, : heads + kv_heads], torch.polar(torch.ones_like(angles), angles))
        using.store(qkv[:, heads:], cache, batch.slots)
        attended = using.attend(qkv[:, :heads], batch, cache, FloatFormat(head_dim, dtype, dtype))
        results.append((qkv, cache, attended))
    for found, expected in zip(*results, strict=True):
        assert found.dtype == dtype
        torch.testing.assert_close(found, expected, **CLOSE[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_large_numbers_as_torch(dtype):
    """e^-200 is nothing beside 1, and e^200 is more than a float has."""
    ours, theirs = operations(dtype=dtype), Operations()
    gate = torch.tensor([-1e4, -200, -100, -89, -87, 87, 89, 100, 200, 1e4])
    gate_up = torch.cat([gate, torch.ones(10)]).unsqueeze(0).to(dtype)
    torch.testing.assert_close(ours.gate(gate_up), theirs.gate(gate_up), atol=1e-5, rtol=1e-2)
    cache, rows = some(3, 4, 4, 8, dtype=dtype), [Rows([0], 10, [0, 1, 2], [0])]
    for scale in (40, -40):
        q = scale * some(1, 6, 8, seed=1, dtype=dtype)
        found, expected = (
            using.attend(q, Packer(4, CPU, dtype, paged=using.paged).pack(rows), cache, FloatFormat(8, dtype, dtype))
            for using in (ours, theirs)
        )
        torch.testing.assert_close(found, expected, **CLOSE[dtype])


def exponentials(numbers):
    found = np.empty_like(numbers)

    @numba.njit
    def fill(numbers, found):
        for i in range(len(numbers)):
            found[i] = numba_kernels.exp(numbers[i])

    fill(numbers, found)
    return found


def test_exponentials_are_right_to_the_last_places():
    numbers = np.concatenate([np.linspace(-87, 88, 100_001), [-0.0, 0.0, 1e-8, -1e-8]]).astype(np.float32)
    exact = np.exp(numbers.astype(np.float64))
    assert np.max(np.abs(exponentials(numbers) / exact - 1)) < 2 * 2.0**-23
    beyond = exponentials(np.array([-1e30, -np.inf, 1e30, np.inf, np.nan], np.float32))
    assert np.all(beyond[:2] < 2e-38)
    assert np.all(beyond[2:4] > 1e38)
    assert math.isnan(beyond[4])


def test_a_bfloat16_is_rounded_as_torch_rounds_it():
    """Ties go to the even neighbour; what is not finite stays so."""
    bits = [0x3F808000, 0x3F818000, 0x3F807FFF, 0x3F808001, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x00000001]
    numbers = torch.tensor(bits, dtype=torch.int32).view(torch.float32)
    numbers = torch.cat([numbers, -numbers, some(1000)])
    found = np.empty(len(numbers), np.uint16)

    @numba.njit
    def fill(numbers, found):
        for i in range(len(numbers)):
            found[i] = numba_kernels.narrow(numbers[i], numba.types.uint16)

    fill(numbers.numpy(), found)
    rounded = torch.from_numpy(found).view(torch.bfloat16)
    torch.testing.assert_close(rounded, numbers.bfloat16(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_number_that_is_none_stays_with_its_row(dtype):
    """Its request fails, and the others do not (decision 163)."""
    ours = operations(dtype=dtype)
    x, gate_up = some(3, 64, dtype=dtype), some(3, 128, dtype=dtype)
    x[1, 5] = gate_up[1, 5] = math.nan
    norm = ours.add_norm(x, torch.zeros_like(x), torch.ones(64, dtype=dtype), 1e-5)
    assert norm.isnan().all(dim=1).tolist() == [False, True, False]
    assert ours.gate(gate_up).isnan().any(dim=1).tolist() == [False, True, False]
    for place in ("query", "key", "value"):
        q, cache = some(3, 6, 8, dtype=dtype), some(3, 4, 4, 8, dtype=dtype)
        {"query": q[1], "key": cache[1, 2, :2], "value": cache[1, 2, 2:]}[place].fill_(math.nan)
        batch = Packer(4, CPU, dtype, paged=True).pack([Rows([0], 3, [block], [0]) for block in range(3)])
        found = ours.attend(q, batch, cache, FloatFormat(8, dtype, dtype)).isnan()
        assert found.flatten(1).all(dim=1).tolist() == [False, True, False]
        assert not found[[0, 2]].any()


def test_a_key_that_nobody_may_see_is_not_read():
    ours = operations()
    q, cache = some(2, 6, 8), some(4, 4, 4, 8)
    batch = Packer(4, CPU, torch.float32, paged=True).pack([Rows([0], 5, [0, 1], [0]), Rows([0], 0, [2, 3], [0])])
    expected = ours.attend(q, batch, cache, FloatFormat(8, torch.float32, torch.float32))
    cache[1, 2:] = cache[2, 1:] = cache[3] = math.nan
    assert ours.attend(q, batch, cache, FloatFormat(8, torch.float32, torch.float32)).equal(expected)


@pytest.fixture
def tiny(tmp_path, monkeypatch, tokenizer):
    monkeypatch.setattr("instrumented_engine.startup.load_tokenizer", lambda *_: tokenizer)
    save_tiny(tmp_path, num_hidden_layers=2)
    return tmp_path


def answers(folder, **settings):
    """What an engine makes of prompts of several lengths, some of which come while others decode; and its facts."""
    options = {"device": "cpu", "threads": 2, "max_seqs": 3, "max_batched_tokens": 20, "block_size": 4}
    trail = MemoryTrail()
    loaded = load(Settings(model=str(folder), **options | settings), Observer(trail))
    drafter = getattr(loaded.engine.scheduler._drafter, "_model", None)
    assert drafter is None or drafter.operations.name == loaded.facts["attention"]
    sequences = [make_sequence(trail, [5 + i] * length, max_tokens=12) for i, length in enumerate((3, 17, 40, 1, 9))]
    found = run_all(loaded.engine, sequences)
    return [found[sequence][0] for sequence in sequences], loaded.facts


DRAFTS = {"speculative_tokens": 2, "speculative_keep_layers": "1"}


@pytest.mark.parametrize(
    "technique",
    [{}, {"kv_cache_dtype": "int8"}, DRAFTS, {"kv_blocks": 14, "swap_space": 0.01}],
    ids=["plain", "cache in 8 bits", "drafts", "few blocks"],
)
def test_an_engine_answers_as_with_torch(tiny, technique):
    if technique is DRAFTS:
        technique = DRAFTS | {"speculative_model": str(tiny)}
    found, facts = answers(tiny, **technique)
    expected, other = answers(tiny, attention_backend="sdpa", **technique)
    assert found == expected
    assert (facts["attention"], other["attention"]) == ("sdpa" if "kv_cache_dtype" in technique else "numba", "sdpa")


def operations_of(folder, dtype=torch.float32, kind="cpu", **options):
    """What a device chooses for a model."""
    file, settings = open_model(folder), Settings(model=str(folder), device="cpu", **options)
    cache_format = kv_format(settings.kv_cache_dtype, file.config().head_dim, dtype, CPU)
    model = Llama(file.config(), file.weights(dtype, CPU), 64, cache_format)
    return Device(torch.device(kind), dtype).operations(settings, model)


def test_the_kernels_of_a_cpu(tiny, caplog):
    chosen = operations_of(tiny)
    assert (type(chosen), chosen.paged, chosen.name) == (NumbaOperations, True, "numba")
    rounded = operations_of(tiny, kv_cache_dtype="int8")
    assert (type(rounded), rounded.paged, rounded.name) == (NumbaOperations, False, "sdpa")
    with caplog.at_level(logging.WARNING):
        for plain in (operations_of(tiny, torch.float16), operations_of(tiny, attention_backend="sdpa")):
            assert type(plain) is Operations
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"dtype": torch.float16}, "Numba's kernels compute float32 and bfloat16, not torch.float16"),
        ({"kind": "cuda"}, "Numba's kernels are for a CPU"),
        ({"kv_cache_dtype": "int8"}, "a KV cache in int8 is read by sdpa alone"),
        ({"kv_cache_dtype": "bfloat16"}, "a KV cache in bfloat16 is read by sdpa alone"),
    ],
)
def test_kernels_that_are_asked_for_and_cannot_be_had(tiny, options, reason):
    with pytest.raises(ModelError, match=f"^--attention-backend numba: {reason}$"):
        operations_of(tiny, attention_backend="numba", **options)


@pytest.mark.parametrize("wrong", ["sum", "norm", "gate", "rotation", "cache", "attention"])
def test_kernels_that_compute_something_else_are_refused(tiny, monkeypatch, caplog, wrong):
    compute = numba_operations._results

    def results(using, *shape):
        found = compute(using, *shape)
        return found | {wrong: found[wrong] * 1.1} if isinstance(using, NumbaOperations) else found

    monkeypatch.setattr(numba_operations, "_results", results)
    with caplog.at_level(logging.WARNING):
        assert type(operations_of(tiny)) is Operations
    assert f"attention is computed by sdpa: the kernels compute another {wrong} than torch" in caplog.text


def test_both_kinds_of_kernels_prove_themselves(tiny, monkeypatch):
    proofs, compute = [], numba_operations._results
    monkeypatch.setattr(
        numba_operations,
        "_results",
        lambda using, *shape: proofs.append(getattr(using, "_shared_work", None)) or compute(using, *shape),
    )
    operations_of(tiny)
    assert proofs == [None, SHARED, ALONE]


def test_without_numba_torch_computes(tiny, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "instrumented_engine.model.numba_operations", None)
    with caplog.at_level(logging.WARNING):
        assert type(operations_of(tiny)) is Operations
    assert "attention is computed by sdpa: " in caplog.text


def test_work_is_shared_from_a_size_on(monkeypatch):
    ours = operations(shared_work=640)
    used, threads = [], []
    for shared, kernels in ours._kernels.items():
        monkeypatch.setitem(
            kernels, "gate", lambda *_, shared=shared: (used.append(shared), threads.append(numba.get_num_threads()))
        )
    before = torch.get_num_threads()
    try:
        for count in (1, 1000):
            torch.set_num_threads(count)
            ours.gate(some(9, 128))
            ours.gate(some(10, 128))
    finally:
        torch.set_num_threads(before)
    assert used == [False, True] * 2
    assert threads[1::2] == [1, numba.config.NUMBA_NUM_THREADS]


PROVED = (LlamaConfig(97, 48, 64, 2, 6, 2, 8, 64, 1e-5, 1e4), 4, torch.float32)
ANOTHER = """
import threading, torch
from instrumented_engine.model.numba_operations import proved_operations
from tests.instrumented_engine.test_numba import PROVED
torch.set_num_threads(1)
found = proved_operations(*PROVED, paged=True)
kernels = [kernel for shared in (True, False) for kernel in found._kernels[shared].values()]
print(torch.get_num_threads(), found._shared_work, [dict(kernel.stats.cache_hits) != {} for kernel in kernels])
found._shared_work = 0
rows = torch.ones(64, 512)
threads = [threading.Thread(target=lambda: [found.gate(rows) for _ in range(300)]) for _ in range(2)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""


@pytest.mark.slow
def test_another_process():
    """It finds the kernels of this one, and torch keeps the number of threads that it was told.

    OpenMP's threads need a library of the system. Without it, Numba's own share less work, and end a process that uses
    them twice at once.
    """
    numba_operations.proved_operations(*PROVED, paged=True)
    ended = subprocess.run(
        [sys.executable, "-c", ANOTHER],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "NUMBA_THREADING_LAYER": "workqueue"},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    threads, shared_work, hits = ended.stdout.strip().split(maxsplit=2)
    assert threads == "1"
    assert int(shared_work) == numba_operations.LARGE_WORK
    assert "False" not in hits


def test_a_folder_that_cannot_be_written_costs_time_alone(monkeypatch):
    def refuse(_):
        raise RuntimeError("cannot cache function: no locator available")

    def double(numbers):
        for i in range(len(numbers)):
            numbers[i] *= 2

    numbers = np.ones(3)
    monkeypatch.setattr(numba.core.dispatcher.Dispatcher, "enable_caching", refuse)
    numba_kernels.compiled(parallel=False)(double)(numbers)
    assert numbers.tolist() == [2, 2, 2]
