"""The engine on CUDA gives the results of the one on a CPU; skipped where there is no CUDA."""

import pytest
import torch

from instrumented_engine.core.observer import Observer
from instrumented_engine.device import open_device
from instrumented_engine.model.download import DEFAULT_MODEL, local_path
from instrumented_engine.settings import Settings
from instrumented_engine.startup import load
from tokentrail.testing import MemoryTrail

from .support import make_sequence, run_all

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
WORDS = 512
PROMPTS = ["w5 w99 w31 w7", "w400 w3", "w12 w13 w14 w15 w16 w17", "w8 w21 w300 w77 " * 40]


@pytest.fixture(scope="module")
def model_file(tmp_path_factory):
    """The default model where it has been downloaded, else one of its shape with random weights."""
    from benchmarks.gpu_model import write

    return local_path(DEFAULT_MODEL) or write(tmp_path_factory.mktemp("model"), "135m", WORDS)


def answers(settings, *, together):
    trail = MemoryTrail()
    loaded = load(settings, Observer(trail))
    sequences = [make_sequence(trail, loaded.tokenizer.encode(text), max_tokens=16) for text in PROMPTS]
    groups = [sequences] if together else [[sequence] for sequence in sequences]
    return [tokens for group in groups for tokens, _, _ in run_all(loaded.engine, group).values()]


def test_float32_equals_the_cpu(model_file):
    common = {"model": str(model_file), "dtype": "float32", "kv_blocks": 128}
    cpu = answers(Settings(device="cpu", **common), together=False)
    cuda = Settings(device="cuda", **common)
    assert answers(cuda, together=False) == cpu
    assert answers(cuda, together=True) == cpu


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(9, 3, 64, 16), (32, 8, 128, 16), (3, 3, 80, 5)])
def test_the_attention_kernel_as_torch(shape, dtype):
    from instrumented_engine.model import paged

    paged.prove(*shape, dtype, torch.device("cuda", 0))


@pytest.mark.parametrize(
    ("settings", "facts"),
    [
        ({}, {"attention": "triton", "cuda_graphs": "1 2 4 8 16"}),
        ({"enforce_eager": True}, {"attention": "triton", "cuda_graphs": "none"}),
        ({"attention_backend": "sdpa"}, {"attention": "sdpa", "cuda_graphs": "none"}),
    ],
    ids=["graphs", "eager", "sdpa"],
)
def test_each_way_of_launching_answers_as_the_cpu(model_file, settings, facts):
    common = {"model": str(model_file), "dtype": "float32", "kv_blocks": 128}
    cuda = Settings(device="cuda", **common, **settings)
    assert load(cuda, Observer(MemoryTrail())).facts.items() >= facts.items()
    assert answers(cuda, together=True) == answers(Settings(device="cpu", **common), together=False)


def test_preemption_on_cuda_does_not_change_the_output(model_file):
    common = {"model": str(model_file), "device": "cuda", "dtype": "float32"}
    tight = Settings(block_size=4, kv_blocks=56, max_model_len=220, **common)
    assert answers(tight, together=True) == answers(Settings(kv_blocks=128, **common), together=False)


def test_auto_takes_cuda_and_bfloat16_and_most_of_the_free_memory(model_file):
    device = open_device(Settings())
    assert (device.target.type, device.dtype) == ("cuda", torch.bfloat16)
    loaded = load(Settings(model=str(model_file)), Observer(MemoryTrail()))
    assert 0.5 < loaded.facts["kv_cache_bytes"] / torch.cuda.get_device_properties(0).total_memory < 0.95


def test_a_step_does_not_beat_the_measured_peaks(model_file):
    """MFU and MBU are shares: a peak that is measured too low shows more than 1."""
    trail = MemoryTrail()
    loaded = load(Settings(model=str(model_file), kv_blocks=512), Observer(trail))
    sequences = [make_sequence(trail, loaded.tokenizer.encode("w5 w9 " * 900), max_tokens=8) for _ in range(4)]
    run_all(loaded.engine, sequences)
    steps = [span for span in trail.spans("tokentrail.step") if "tokentrail.step.compute_ns" in span.attributes]
    assert steps
    for span in steps:
        took = span.attributes["tokentrail.step.device_ns"]
        assert max(span.attributes["tokentrail.step.compute_ns"], span.attributes["tokentrail.step.memory_ns"]) < took
