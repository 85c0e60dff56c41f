"""The default model against transformers, token by token."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from instrumented_engine.core.block_manager import BlockManager
from instrumented_engine.core.engine import Engine
from instrumented_engine.core.observer import Observer
from instrumented_engine.core.scheduler import Scheduler
from instrumented_engine.model.runner import ModelRunner
from tokentrail.testing import MemoryTrail

from .support import make_sequence, run_all

TEXT = """The lighthouse keeper counted ships the way other men count coins. Every evening he climbed the 199 steps, lit
the lamp, and wrote into a ledger what the sea had brought: three trawlers, a naïve yacht, one barge with no name. On
the 4th of March the fog came in so thick that he could not see his own hands, and he rang the bell until dawn. def
fog(x): return [y for y in x if y is not None]. In the morning a boy stood at the door, wet to the bone, and asked
whether this was where the bell lived. «Oui», said the keeper, who had once been to Marseille. Предложение. 漢字も。
The boy ate four eggs, slept for eleven hours, and then asked how many ships there were in the whole world. The keeper
thought about it: the ledger went back to 1871, and nobody had ever added it up. So they began, page by page, year by
year, carrying the tens. It took all winter. Questions: 1) How many steps? 2) What did the boy eat? 3) Who rang?"""
LENGTHS = (1, 2, 3, 4, 5, 7, 8, 11, 15, 16, 17, 24, 32, 33, 47, 64, 96, 128, 190, 330)
NEW_TOKENS = 16


@pytest.fixture(scope="module")
def prompts(smollm):
    ids = smollm[1].encode(TEXT)
    starts = [7 * i % 40 for i in range(len(LENGTHS))]
    found = [(ids * 2)[start : start + length] for start, length in zip(starts, LENGTHS, strict=True)]
    assert [len(prompt) for prompt in found] == list(LENGTHS)
    return found


@pytest.fixture(scope="module")
def expected(smollm_file, prompts):
    model = AutoModelForCausalLM.from_pretrained(
        smollm_file.parent, gguf_file=smollm_file.name, dtype=torch.float32
    ).eval()

    def generate(prompt):
        ids = torch.tensor([prompt])
        with torch.inference_mode():
            out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS, do_sample=False)
        return out[0, len(prompt) :].tolist()

    return [generate(prompt) for prompt in prompts]


def engine_of(smollm, *, blocks=256, block_size=16, max_seqs=32, budget=512):
    model, tokenizer = smollm
    runner = ModelRunner(model, kv_blocks=blocks, block_size=block_size, eos_ids=tokenizer.eos_ids)
    scheduler = Scheduler(
        BlockManager(blocks, block_size), max_seqs=max_seqs, max_batched_tokens=budget, watermark_blocks=0
    )
    return Engine(scheduler, runner, Observer(MemoryTrail()), eos_ids=tokenizer.eos_ids)


def generate(engine, prompts):
    trail = MemoryTrail()
    sequences = [make_sequence(trail, prompt, max_tokens=NEW_TOKENS) for prompt in prompts]
    return [tokens for tokens, _, _ in run_all(engine, sequences).values()]


def test_alone_as_transformers(smollm, prompts, expected):
    engine = engine_of(smollm)
    assert [generate(engine, [prompt])[0] for prompt in prompts] == expected


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
