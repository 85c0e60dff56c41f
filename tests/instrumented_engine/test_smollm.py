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

ALONE = (1, 8, 15, 16, 17, 64, 330)
"""Lengths of the prompts that run alone too: one token, the edges of a block of 16, several blocks."""
FEW = 4
"""New tokens of those that run alone: each takes a pass of the whole model."""


@pytest.fixture(scope="module")
def reference():
    return json.loads(FILE.read_text())["answers"]


@pytest.fixture(scope="module")
def prompts(reference):
    return [answer["prompt"] for answer in reference]


@pytest.fixture(scope="module")
def expected(reference):
    return [answer["answer"] for answer in reference]


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


def test_prompts_are_what_the_tokenizer_makes_of_the_text(smollm, prompts):
    assert make_prompts(smollm[1]) == prompts


def test_alone_as_transformers(smollm, prompts, expected):
    engine = engine_of(smollm)
    chosen = [i for i, prompt in enumerate(prompts) if len(prompt) in ALONE]
    assert [generate(engine, [prompts[i]], FEW)[0] for i in chosen] == [expected[i][:FEW] for i in chosen]
    assert len(chosen) == len(ALONE)


def test_batched_as_transformers(smollm, prompts, expected):
    engine = engine_of(smollm)
    assert generate(engine, prompts) == expected
    assert engine.scheduler.preemptions == 0


def test_preempted_as_transformers(smollm, prompts, expected):
    # 84 tokens of cache for sequences of up to 81, and a step's budget that splits the longest prompts.
    engine = engine_of(smollm, blocks=21, block_size=4, max_seqs=8, budget=48)
    fitting = [i for i, prompt in enumerate(prompts) if len(prompt) <= 65]
    assert generate(engine, [prompts[i] for i in fitting]) == [expected[i] for i in fitting]
    assert engine.scheduler.preemptions >= 3
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
