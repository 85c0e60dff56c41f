"""Hugging Face folders against transformers, and models that are refused."""

import json
import sys
from dataclasses import replace
from itertools import chain

import gguf
import numpy as np
import pytest
import torch
import transformers

from instrumented_engine.core.plan import Plan, Scheduled
from instrumented_engine.model import llama
from instrumented_engine.model.errors import ModelError
from instrumented_engine.model.gguf import GgufFile
from instrumented_engine.model.hf import HfFolder
from instrumented_engine.model.linear import Int4Linear, Int8Linear, linear
from instrumented_engine.model.llama import Llama
from instrumented_engine.model.numba_operations import NumbaOperations
from instrumented_engine.model.operations import Operations
from instrumented_engine.model.runner import ModelRunner, _rows
from instrumented_engine.model.weights import open_model
from tokentrail.testing import MemoryTrail

from .support import make_sequence

CPU = torch.device("cpu")
TINY = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
SHAPES = {
    "grouped heads": {},
    "tied embeddings": {"tie_word_embeddings": True},
    "one key head per query head": {"num_key_value_heads": 6},
    "wide heads": {"head_dim": 16},
    "another rotary base": {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}},
    "llama 3 rotary scaling": {"rope_parameters": LLAMA3},
}


FAMILIES = {
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral within its window": ("Mistral", {"sliding_window": 60}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
}


def numba_operations(config):
    """Kernels that no threads share, which are compiled sooner."""
    shape = (config.heads, config.kv_heads, config.head_dim)
    return NumbaOperations(*shape, torch.float32, paged=True, shared_work=sys.maxsize)


OPERATIONS = {"torch": lambda _: Operations(), "numba": numba_operations}


def save_tiny(folder, *, shards="1GB", **changes):
    torch.manual_seed(5)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**TINY | changes)).eval()
    model.save_pretrained(folder, max_shard_size=shards)
    return model


def engine_logits(
    folder, prompt, chunks, dtype=torch.float32, quantization="none", keep_layers="", operations=OPERATIONS["torch"]
):
    """Logits of the prompt's last token, computed `chunks` at a time."""
    file = open_model(folder, keep_layers)
    config = file.config()
    model = Llama(config, file.weights(dtype, CPU, quantization), 256, operations=operations(config))
    runner = ModelRunner(model, kv_blocks=40, block_size=4, eos_ids=[])
    sequence = make_sequence(MemoryTrail(), prompt)
    sequence.block_table = list(range(39, 39 - -(-len(prompt) // 4), -1))
    with torch.inference_mode():
        for count in chunks:
            logits = model.logits(
                model.forward(runner._packer.pack([_rows(Scheduled(sequence, count))]), runner._cache)
            )
            sequence.num_computed_tokens += count
    return logits[0]


@pytest.mark.parametrize("operations", OPERATIONS.values(), ids=OPERATIONS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("chunks", [[60], [25, 34, 1], [100], [70, 29, 1]])
def test_logits_as_transformers(tmp_path, shape, chunks, operations):
    reference = save_tiny(tmp_path, **SHAPES[shape])
    prompt = torch.randint(0, 97, (sum(chunks),), generator=torch.Generator().manual_seed(1)).tolist()
    with torch.inference_mode():
        expected = reference(torch.tensor([prompt])).logits[0, -1]
    found = engine_logits(tmp_path, prompt, chunks, operations=operations)
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("operations", OPERATIONS.values(), ids=OPERATIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_other_families_as_transformers(tmp_path, family, operations):
    name, changes = FAMILIES[family]
    config, kind = getattr(transformers, f"{name}Config"), getattr(transformers, f"{name}ForCausalLM")
    torch.manual_seed(6)
    reference = kind(config(**TINY | changes)).eval()
    for name, parameter in reference.named_parameters():
        if "norm" in name or "bias" in name:  # transformers starts with ones and zeros, which hide a wrong order
            torch.nn.init.normal_(parameter, 1.0, 0.3)
    reference.save_pretrained(tmp_path)
    prompt = torch.randint(0, 97, (60,), generator=torch.Generator().manual_seed(1)).tolist()
    with torch.inference_mode():
        expected = reference(torch.tensor([prompt])).logits[0, -1]
    found = engine_logits(tmp_path, prompt, [25, 34, 1], operations=operations)
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=1e-4)
    assert open_model(tmp_path).config().max_position == (60 if "window" in family else 256)


@pytest.mark.parametrize(("keep_layers", "kept"), [("0,2", [0, 2]), ("1-2", [1, 2]), ("2", [0, 2]), ("1", [0])])
def test_fewer_layers_as_transformers_without_the_others(tmp_path, keep_layers, kept):
    reference = save_tiny(tmp_path)
    reference.model.layers = torch.nn.ModuleList(reference.model.layers[index] for index in kept)
    prompt = list(range(20))
    with torch.inference_mode():
        expected = reference(torch.tensor([prompt]), use_cache=False).logits[0, -1]
    found = engine_logits(tmp_path, prompt, [12, 8], keep_layers=keep_layers)
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=1e-4)


def test_layers_that_are_kept(tmp_path):
    save_tiny(tmp_path)
    config = replace(open_model(tmp_path).config(), layers=8)
    kept = {text: config.pruned(text, "").kept for text in ("0-2,7", "4", "5", "1", "8", "3-3", "")}
    assert list(kept.values()) == [(0, 1, 2, 7), (0, 1, 6, 7), (0, 1, 2, 6, 7), (0,), tuple(range(8)), (3,), None]
    assert config.pruned("0-2,7", "").layers == 4
    for text in ("0", "9", "99", "0-8", "2-1", "1,1", "3,2", "0-2,2-4"):
        with pytest.raises(ModelError, match=f"^--keep-layers {text}: the model has the layers 0 to 7.*number, 1 to 8"):
            config.pruned(text, "--keep-layers")


def test_layers_that_a_model_file_lacks_are_told_with_the_flag(tmp_path):
    save_tiny(tmp_path)
    with pytest.raises(ModelError, match=r"^--keep-layers 99: "):
        open_model(tmp_path, "99").config()
    with pytest.raises(ModelError, match=r"^--speculative-keep-layers 99: "):
        open_model(tmp_path, "99", "--speculative-keep-layers").config()


@pytest.mark.parametrize("count", [7, 20], ids=["samples nothing", "samples"])
def test_a_step_copies_its_numbers_once_and_waits_for_the_device(tmp_path, monkeypatch, count):
    """On an asynchronous device, `forward` only queues work. The stamps of a step are taken when `run` returns."""
    save_tiny(tmp_path)
    file = open_model(tmp_path)
    model = Llama(file.config(), file.weights(torch.float32, CPU), 256)
    runner = ModelRunner(model, kv_blocks=40, block_size=4, eos_ids=[])
    happened, forward, copied = [], model.forward, runner._packer.copied
    monkeypatch.setattr(model, "forward", lambda *args: (happened.append("queued"), forward(*args))[1])
    monkeypatch.setattr(runner._packer, "copied", lambda *args: (happened.append("copied"), copied(*args))[1])
    monkeypatch.setattr(runner, "_synchronize", lambda: happened.append("done"))
    trail, plan = MemoryTrail(), Plan()
    for first in (0, 20):
        sequence = make_sequence(trail, list(range(20)))
        sequence.block_table = list(range(first, first + 5))
        plan.add(sequence, count)
    result = runner.run(plan)
    assert happened == ["copied", "queued", "done"]
    assert [len(tokens) for tokens in result.token_ids] == [int(count == 20)] * 2


def test_a_transfer_waits_for_the_device_and_counts_its_bytes(tmp_path, monkeypatch):
    save_tiny(tmp_path)
    file = open_model(tmp_path)
    model = Llama(file.config(), file.weights(torch.float32, CPU), 256)
    runner = ModelRunner(model, kv_blocks=8, block_size=4, eos_ids=[], host_blocks=8)
    waited = []
    monkeypatch.setattr(runner, "_synchronize", lambda: waited.append(1))
    moved = runner.transfer([1, 2, 3], [0, 5, 6], to_host=True)
    assert (moved, len(waited)) == (3 * 3 * 4 * (2 * 2 * 8) * 4, 1), (
        "blocks · layers · tokens · keys and values · bytes"
    )


def test_a_lack_of_memory_is_one_error_on_each_device(tmp_path, monkeypatch):
    save_tiny(tmp_path)
    file = open_model(tmp_path)
    runner = ModelRunner(
        Llama(file.config(), file.weights(torch.float32, CPU), 256), kv_blocks=4, block_size=4, eos_ids=[]
    )

    def forward(*_):
        raise failure

    monkeypatch.setattr(runner._model, "forward", forward)
    plan = Plan()
    plan.add(make_sequence(MemoryTrail(), [1]), 1)
    plan.batch[0].sequence.block_table = [0]
    try:
        torch.empty(1 << 50)
    except RuntimeError as error:
        allocator = error
    for failure in (allocator, torch.OutOfMemoryError("CUDA out of memory"), MemoryError("std::bad_alloc")):
        with pytest.raises(MemoryError) as raised:
            runner.run(plan)
        assert str(raised.value) == str(failure)
        assert raised.value.__context__ is None, "it would hold the tensors of the failed pass"
    failure = RuntimeError("bad kernel")
    with pytest.raises(RuntimeError, match="bad kernel"):
        runner.run(plan)


def test_a_probe_leaves_the_cache_as_it_is(tmp_path):
    save_tiny(tmp_path)
    file = open_model(tmp_path)
    runner = ModelRunner(
        Llama(file.config(), file.weights(torch.float32, CPU), 256), kv_blocks=2, block_size=4, eos_ids=[]
    )
    runner._cache.normal_()
    before = runner._cache.clone()
    runner.warm_up()
    assert torch.equal(runner._cache[:, :2], before[:, :2])


def test_bfloat16_is_close(tmp_path):
    reference = save_tiny(tmp_path)
    prompt = list(range(40))
    with torch.inference_mode():
        expected = reference(torch.tensor([prompt])).logits[0, -1]
    logits = engine_logits(tmp_path, prompt, [40], torch.bfloat16)
    assert logits.dtype == torch.bfloat16
    assert torch.corrcoef(torch.stack([logits.float(), expected]))[0, 1] > 0.99


@pytest.mark.parametrize(("quantization", "closeness"), [("int8", 0.99), ("int4", 0.93)])
@pytest.mark.parametrize("chunks", [[40], [33, 4, 1, 1, 1]])
def test_quantised_weights_are_close(tmp_path, quantization, closeness, chunks):
    reference = save_tiny(tmp_path, hidden_size=96, intermediate_size=128)
    prompt = list(range(40))
    with torch.inference_mode():
        expected = reference(torch.tensor([prompt])).logits[0, -1]
    logits = engine_logits(tmp_path, prompt, chunks, torch.bfloat16, quantization)
    assert torch.corrcoef(torch.stack([logits.float(), expected]))[0, 1] > closeness


@pytest.mark.parametrize("fast", [True, False])
def test_the_matrix_to_the_logits_has_8_bits_where_bfloat16_is_slow(tmp_path, monkeypatch, fast):
    save_tiny(tmp_path)
    monkeypatch.setattr(llama, "multiplies_bfloat16", lambda _: fast)
    for quantization in ("int8", "int4"):
        weights = open_model(tmp_path).weights(torch.bfloat16, CPU, quantization)
        assert isinstance(weights.lm_head, Int8Linear) is not fast
        assert all(isinstance(matrix, Int8Linear | Int4Linear) for matrix in weights.matrices[:-1])
    assert not isinstance(open_model(tmp_path).weights(torch.bfloat16, CPU, "none").lm_head, Int8Linear)


def test_all_matrices_of_a_model_decide_about_padding(tmp_path, monkeypatch):
    save_tiny(tmp_path)
    asked = []
    monkeypatch.setattr(llama, "pad_few_rows", asked.append)
    weights = open_model(tmp_path).weights(torch.float32, CPU, "none")
    assert asked == [weights.matrices]
    layers = [(layer.qkv, layer.output, layer.gate_up, layer.down) for layer in weights.layers]
    assert asked[0] == [*chain.from_iterable(layers), weights.lm_head]


def test_products_have_few_numbers_of_rows(tmp_path, monkeypatch):
    save_tiny(tmp_path)
    seen = set()

    class Recorded:
        nbytes = 0

        def __init__(self, multiply):
            self.multiply = multiply

        def __call__(self, x):
            seen.add(len(x))
            return self.multiply(x)

    monkeypatch.setattr(llama, "linear", lambda *given: Recorded(linear(*given)))
    for length in range(58, 97):
        engine_logits(tmp_path, [5] * length, [length])
    assert seen == {1, *range(58, 65), 72, 80, 88, 96}  # one row: the logits


def test_sharded_folders(tmp_path):
    save_tiny(tmp_path / "whole")
    save_tiny(tmp_path / "sharded", shards="20KB")
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 1
    prompt = list(range(20))
    whole, sharded = (engine_logits(tmp_path / name, prompt, [20]) for name in ("whole", "sharded"))
    assert torch.equal(whole, sharded)
    next((tmp_path / "sharded").glob("*-00002-*")).unlink()
    with pytest.raises(ModelError, match=r"names files that are not there: .*00002"):
        HfFolder(tmp_path / "sharded")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt2"}, "model_type = 'gpt2' is not supported"),
        ({"attention_bias": True}, "attention_bias = True is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu' is not supported"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope scaling 'yarn' is not supported"),
        ({"hidden_size": None}, "hidden_size must be a positive integer, not None"),
        ({"intermediate_size": 65}, r"ffn_gate.weight has shape \(64, 48\), the configuration says \(65, 48\)"),
        ({"num_hidden_layers": 4}, "model.layers.3.input_layernorm.weight is missing"),
    ],
)
def test_folders_that_are_refused(tmp_path, changes, message):
    save_tiny(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(ModelError, match=message):
        HfFolder(tmp_path).weights(torch.float32, CPU)


def test_folders_without_what_they_need(tmp_path):
    with pytest.raises(ModelError, match=r"config\.json cannot be read"):
        HfFolder(tmp_path)
    save_tiny(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not tensors")
    with pytest.raises(ModelError, match=r"no usable model\.safetensors"):
        HfFolder(tmp_path)


def test_arrays_of_a_gguf_file_are_stepped_over(tmp_path):
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_array("words", ["a", "lighthouse", ""])
    writer.add_array("kinds", [3, 1, 4])
    writer.add_array("scores", [0.5])
    writer.add_uint32("tokenizer.ggml.eot_token_id", 7)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert GgufFile(path).eos_ids == (7,)
    whole = path.read_bytes()
    length = whole.index(b"lighthouse") - 8
    for broken in (whole[: length + 12], whole[: length + 4], whole[:length] + b"\xff" * 8 + whole[length + 8 :]):
        path.write_bytes(broken)
        with pytest.raises(ModelError, match="is not a readable GGUF file"):
            GgufFile(path)


def test_a_tensor_of_a_gguf_file_that_has_another_shape_than_the_metadata_is_named(tmp_path):
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_embedding_length(12)
    writer.add_feed_forward_length(16)
    writer.add_block_count(1)
    writer.add_head_count(2)
    writer.add_context_length(64)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tensor("token_embd.weight", np.zeros((5, 8), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    told = r"tensor token_embd.weight has shape \(5, 8\), the configuration says \(5, 12\)"
    with pytest.raises(ModelError, match=told):
        GgufFile(path).weights(torch.float32, CPU)


def test_files_that_are_refused(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF but not really")
    with pytest.raises(ModelError, match="is not a readable GGUF file"):
        GgufFile(path)
    writer = gguf.GGUFWriter(path, "falcon")
    writer.add_tensor("token_embd.weight", np.zeros((4, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelError, match="holds a 'falcon' model"):
        GgufFile(path)


@pytest.mark.parametrize(("rows", "texts"), [(20, [16, 4]), (17, [1, 16]), (9, [9])])
def test_the_largest_step_has_all_rows_and_all_samples(tmp_path, monkeypatch, rows, texts):
    save_tiny(tmp_path)
    file = open_model(tmp_path)
    model = Llama(file.config(), file.weights(torch.float32, CPU), 256)
    runner = ModelRunner(model, kv_blocks=4, block_size=4, eos_ids=[])
    batches, logits = [], []
    forward, to_logits = model.forward, model.logits
    monkeypatch.setattr(model, "forward", lambda batch, cache: (batches.append(batch), forward(batch, cache))[1])
    monkeypatch.setattr(model, "logits", lambda states: (logits.append(len(states)), to_logits(states))[1])
    runner.largest_step(rows, 8)
    [batch] = batches
    parts = [1] * batch.decodes + [part.stop - part.start for part in batch.prefills]
    assert (len(batch.tokens), parts, logits) == (rows, texts, [8])
