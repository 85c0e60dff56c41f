"""Triton's kernel against torch's attention, in Triton's interpreter, and compiled for GPUs that are not here."""

import json
import logging
import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

pytest.importorskip("triton")  # torch brings it for CUDA alone
if torch.cuda.is_available():
    pytest.skip("test_gpu.py runs the kernel on the device", allow_module_level=True)

from triton.runtime import interpreter

from instrumented_engine.core.observer import Observer
from instrumented_engine.model import paged
from instrumented_engine.model.errors import ModelError
from instrumented_engine.model.operations import gathered_attention
from instrumented_engine.settings import Settings
from instrumented_engine.startup import load
from tokentrail.testing import MemoryTrail

from .support import make_sequence, run_all
from .test_model import save_tiny
from .test_numba import operations_of

CPU = torch.device("cpu")
SHAPES = {
    "grouped heads": (9, 3, 64, 16, torch.float32),
    "odd heads and blocks": (3, 3, 20, 5, torch.float32),
    "one key head": (4, 1, 16, 4, torch.float32),
    "float16": (8, 2, 32, 16, torch.float16),
    "bfloat16": (8, 2, 32, 16, torch.bfloat16),
}


@pytest.fixture
def bfloat16(monkeypatch):
    """Triton 3.7's interpreter keeps a bfloat16 as an integer of 16 bits, and multiplies those."""
    dot = interpreter.InterpreterBuilder.create_dot

    def widened(self, a, b, *others):
        return dot(self, *(_wide(operand) for operand in (a, b)), *others)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", widened)


def _wide(operand):
    if operand.data.dtype != "uint16":
        return operand
    bits = torch.from_numpy(operand.data.copy()).view(torch.bfloat16)
    return interpreter.TensorHandle(bits.float().numpy(), interpreter.tl.float32)


def one_by_one(q, cache, block_table, lengths):
    """Attention of each sequence alone, over a context without blocks, in float32."""
    found = []
    for queries, table, length in zip(q.float(), block_table, lengths.tolist(), strict=True):
        context = cache[table].flatten(0, 1)[:length].float().transpose(0, 1)
        keys, values = context.repeat_interleave(len(queries) * 2 // len(context), dim=0).chunk(2)
        found.append(F.scaled_dot_product_attention(queries.unsqueeze(1), keys, values).squeeze(1))
    return torch.stack(found)


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("parts", [1, 4], ids=["whole", "in parts"])
def test_the_kernel_as_torch(shape, parts, monkeypatch, bfloat16):
    """Contexts end before, at and behind the ends of blocks, tiles and parts; some parts have nothing to do."""
    heads, kv_heads, head_dim, size, dtype = SHAPES[shape]
    monkeypatch.setattr(paged, "num_parts", lambda heads: parts)
    tile, most = paged.TILE, 4 * paged.TILE + 1
    generator = torch.Generator().manual_seed(3)
    lengths = torch.tensor([1, size, size + 1, tile - 1, tile, tile + 1, most][-5 if shape == "bfloat16" else 0 :])
    width = -(-most // size)
    table = torch.randperm(len(lengths) * width, generator=generator).view(len(lengths), width)
    qkv = torch.randn((len(lengths), heads + 2 * kv_heads, head_dim), generator=generator).to(dtype)
    cache = torch.randn((len(lengths) * width, size, 2 * kv_heads, head_dim), generator=generator).to(dtype)
    q = qkv[:, :heads]  # as in a forward pass: keys and values lie between two queries
    expected = one_by_one(q, cache, table, lengths)
    found = paged.paged_attention(q, cache, table, lengths)
    assert found.dtype == dtype
    exact = dtype == torch.float32
    torch.testing.assert_close(found.float(), expected, atol=1e-5 if exact else 2e-2, rtol=1e-5 if exact else 2e-2)


def test_few_sequences_are_divided_into_more_parts():
    assert [paged.num_parts(heads) for heads in (1, 3, 16, 17, 32, 64, 100, 128, 200, 256, 8192)] == [
        16, 16, 16, 8, 8, 4, 2, 2, 1, 1, 1
    ]  # fmt: skip


@pytest.mark.slow
def test_an_engine_answers_as_with_sdpa(tmp_path, monkeypatch, tokenizer):
    monkeypatch.setattr(paged, "PROGRAMS", 1)  # the interpreter runs them one after the other
    monkeypatch.setattr("instrumented_engine.startup.load_tokenizer", lambda *_: tokenizer)
    save_tiny(tmp_path, num_hidden_layers=2)
    found = {}
    for backend in ("sdpa", "triton"):
        settings = Settings(
            model=str(tmp_path), device="cpu", attention_backend=backend, threads=1, max_seqs=2, max_batched_tokens=20
        )
        trail = MemoryTrail()
        loaded = load(settings, Observer(trail))
        prompts = [[5, 6, 7], [8] * 17]
        sequences = [make_sequence(trail, prompt, max_tokens=3) for prompt in prompts]
        answers = run_all(loaded.engine, sequences)
        found[backend] = [answers[sequence][0] for sequence in sequences]
        assert (loaded.facts["attention"], loaded.facts["cuda_graphs"]) == (backend, "none")
    assert found["triton"] == found["sdpa"]


def chosen(tmp_path, kind, **options):
    """The name of the operations of a model on a device of that kind."""
    save_tiny(tmp_path)
    return operations_of(tmp_path, kind=kind, **options).name


def test_the_backend_that_is_chosen(tmp_path, monkeypatch):
    proofs = []
    monkeypatch.setattr(paged, "prove", lambda *shape: proofs.append(shape))
    assert chosen(tmp_path, "cpu") == "numba"
    assert chosen(tmp_path, "cuda", attention_backend="sdpa") == "sdpa"
    assert proofs == []
    assert chosen(tmp_path, "cuda", block_size=32) == "triton"
    assert proofs == [(6, 2, 8, 32, torch.float32, torch.device("cuda"))]
    assert chosen(tmp_path, "cpu", attention_backend="triton") == "triton"


@pytest.mark.parametrize(
    ("settings", "broken", "reason"),
    [
        ({"kv_cache_dtype": "int8"}, None, "a KV cache in int8 is read by sdpa alone"),
        ({"kv_cache_dtype": "bfloat16"}, None, "a KV cache in bfloat16 is read by sdpa alone"),
        ({}, RuntimeError("Failed to find C compiler"), "Failed to find C compiler"),
        ({}, ImportError("No module named 'triton'"), "No module named 'triton'"),
    ],
)
def test_without_the_kernel_attention_is_torchs(tmp_path, monkeypatch, caplog, settings, broken, reason):
    def prove(*_):
        if broken:
            raise broken

    monkeypatch.setattr(paged, "prove", prove)
    with caplog.at_level(logging.WARNING):
        assert chosen(tmp_path, "cuda", **settings) == "sdpa"
    assert f"attention is computed by sdpa: {reason}" in caplog.text
    with pytest.raises(ModelError, match=f"--attention-backend triton: {reason}"):
        chosen(tmp_path, "cpu", attention_backend="triton", **settings)


def test_a_kernel_that_computes_something_else_is_refused(monkeypatch):
    compute = gathered_attention
    monkeypatch.setattr(paged, "paged_attention", lambda q, cache, table, lengths: q)
    with pytest.raises(RuntimeError, match="the kernel's results are not those of torch's attention"):
        paged.prove(6, 2, 16, 4, torch.float32, CPU)
    expected = []
    monkeypatch.setattr(paged, "gathered_attention", lambda *args: expected.append(compute(*args)) or expected[-1])
    monkeypatch.setattr(paged, "paged_attention", lambda q, cache, table, lengths: expected[-1] * 1.01)
    paged.prove(6, 2, 16, 4, torch.float32, CPU)


COMPILE = """
import json, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from instrumented_engine.model import paged

def compiled(kernel, floats, constants, capability):
    kinds = {"q": floats, "cache": floats, "out": floats, "block_table": "*i64", "lengths": "*i64", "scale": "fp32"}
    numbers = ("q_stride", "cache_block_stride", "cache_slot_stride", "table_stride")
    signature = {
        name: "constexpr" if name in constants else "i32" if name in numbers else kinds.get(name, "*fp32")
        for name in kernel.arg_names
    }
    source = ASTSource(kernel, signature, {(kernel.arg_names.index(name),): value for name, value in constants.items()})
    found = triton.compile(source, target=GPUTarget("cuda", capability, 32))
    return {"code": len(found.asm["cubin"]), "tensor_cores": "mma" in found.asm["ptx"], "shared": found.metadata.shared}

found = []
for capability, floats in ((80, "*bf16"), (90, "*bf16"), (90, "*fp32")):
    sizes = {"GROUP": 4, "HEAD_DIM": 128, "WIDTH": 128, "PARTS": 16}
    part = sizes | {"KV_HEADS": 8, "ROWS": 16, "BLOCK_SIZE": 16, "TILE": paged.TILE}
    kernels = (paged._attend_part, part), (paged._join, sizes)
    found.append([compiled(kernel, floats, constants, capability) for kernel, constants in kernels])
fixed = [parameter.name for parameter in paged._attend_part.params if parameter.do_not_specialize]
print(json.dumps([found, fixed]))
"""


@pytest.mark.slow
def test_the_kernel_compiles_for_gpus_that_are_not_here(tmp_path):
    """To machine code of an A100 and an H100. bfloat16 is multiplied by their tensor cores, float32 exactly."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", COMPILE],
        env=environment | {"TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found, fixed = json.loads(done.stdout.splitlines()[-1])
    assert [part["tensor_cores"] for part, _ in found] == [True, True, False]
    for kernels in found:
        for kernel in kernels:
            assert kernel["code"] > 1000
            assert kernel["shared"] <= 48 << 10, "what each block of threads may have without asking"
    assert fixed == ["table_stride"], "a table that is one block longer must not be compiled for again"
