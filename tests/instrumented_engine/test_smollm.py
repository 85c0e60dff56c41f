"""The default model against transformers, token by token. tests/data/smollm2-135m holds the answers of transformers."""

import json

import pytest

from instrumented_engine.core.block_manager import BlockManager
from instrumented_engine.core.engine import Engine
from instrumented_engine.core.observer import Observer
from instrumented_engine.core.scheduler import Scheduler
from instrumented_engine.model.runner import ModelRunner
from tokentrail.testing import MemoryTrail

from .reference import FILE, NEW_TOKENS, make_prompts
from .support import make_sequence, run_all

ALONE = (1, 15, 16, 17, 64)
"""Lengths of the prompts that run alone too: one token, the edges of a block of 16, several blocks."""
TOGETHER = (1, 2, 4, 8, 15, 16, 17, 32, 33, 64, 190, 330)
"""Lengths of the prompts that run in one batch: together they are longer than a step's budget."""
FEW = 4
"""New tokens of those that run alone: each takes a pass of the whole model."""


@pytest.fixture(scope="module")
def reference():
    return json.loads(FILE.read_text())["answers"]


def chosen(reference, lengths):
    """The prompts with these lengths, and their answers."""
    pairs = [(answer["prompt"], answer["answer"]) for answer in reference if len(answer["prompt"]) in lengths]
    assert len(pairs) == len(lengths)
    return zip(*pairs, strict=True)


def engine_of(smollm, *, blocks=256, block_size=16, max_seqs=32, budget=512):
    model, tokenizer = smollm
    runner = ModelRunner(model, kv_blocks=blocks, block_size=block_size, eos_ids=tokenizer.eos_ids)
    scheduler = Scheduler(
        BlockManager(blocks, block_size), max_seqs=max_seqs, max_batched_tokens=budget, watermark_blocks=0
    )
    return Engine(scheduler, runner, Observer(MemoryTrail()), eos_ids=tokenizer.eos_ids)


def generate(engine, prompts, max_tokens=NEW_TOKENS):
    trail = MemoryTrail()
    sequences = [make_sequence(trail, prompt, max_tokens=max_tokens) for prompt in prompts]
    return [tokens for tokens, _, _ in run_all(engine, sequences).values()]


def test_the_tokenizer_makes_the_prompts_of_the_text(smollm, reference):
    assert make_prompts(smollm[1]) == [answer["prompt"] for answer in reference]


def test_alone_as_transformers(smollm, reference):
    engine = engine_of(smollm)
    prompts, expected = chosen(reference, ALONE)
    assert [generate(engine, [prompt], FEW)[0] for prompt in prompts] == [answer[:FEW] for answer in expected]


def test_batched_as_transformers(smollm, reference):
    engine = engine_of(smollm)
    prompts, expected = chosen(reference, TOGETHER)
    assert generate(engine, prompts) == [*expected]
    assert engine._observer.latencies.preemptions == 0


def test_preempted_as_transformers(smollm, reference):
    # 84 tokens of cache for sequences of up to 80, and a step's budget that splits the longest prompts.
    engine = engine_of(smollm, blocks=21, block_size=4, max_seqs=8, budget=48)
    prompts, expected = chosen(reference, [length for length in TOGETHER if length <= 64])
    assert generate(engine, prompts) == [*expected]
    assert engine._observer.latencies.preemptions >= 3
    assert engine.scheduler.block_manager.num_used_blocks == 0


def test_the_chat_template_is_the_models_own(smollm):
    _, tokenizer = smollm
    ids = tokenizer.encode_chat([{"role": "user", "content": "Hi"}])
    text = tokenizer._backend.decode(ids, skip_special_tokens=False)
    assert text == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert tokenizer.decode(ids).startswith("system\nYou are"), "special tokens are left out of answers"
