"""Each technique alone and all together: a tiny random model, greedy, token by token as transformers."""

from collections import Counter

import pytest
import torch
import transformers

from instrumented_engine.core.block_manager import BlockManager
from instrumented_engine.core.drafter import PromptLookup
from instrumented_engine.core.engine import Engine
from instrumented_engine.core.observer import Observer
from instrumented_engine.core.scheduler import Scheduler
from instrumented_engine.model.draft import matching
from instrumented_engine.model.kv_format import kv_format
from instrumented_engine.model.llama import Llama
from instrumented_engine.model.runner import ModelRunner
from instrumented_engine.model.weights import open_model
from tokentrail.testing import MemoryTrail

from .support import make_request, make_sequence, run_all
from .test_model import TINY

NEW_TOKENS = 24
BASE = [(7 * i) % 97 for i in range(60)]
PROMPTS = [BASE[:n] + extra for n in (60, 3, 16, 17, 33) for extra in ([], [5, 6], [9] * 7)]


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """A tiny model's threads spend their time waiting for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """(model, the model in transformers, its answers to PROMPTS)."""
    folder = tmp_path_factory.mktemp("tiny")
    torch.manual_seed(5)
    reference = transformers.LlamaForCausalLM(transformers.LlamaConfig(**TINY, eos_token_id=None)).eval()
    reference.save_pretrained(folder)
    file = open_model(folder)
    model = Llama(file.config(), file.weights(torch.float32, torch.device("cpu")), 256)

    def answer(prompt):
        ids = torch.tensor([prompt])
        options = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "pad_token_id": 0}
        with torch.inference_mode():
            return reference.generate(ids, attention_mask=torch.ones_like(ids), **options)[0, len(prompt) :].tolist()

    return model, reference, [answer(prompt) for prompt in PROMPTS]


def engine_of(model, trail, *, blocks, budget, **scheduling):
    host_blocks = scheduling.get("host_blocks", 0)
    runner = ModelRunner(model, kv_blocks=blocks, block_size=4, eos_ids=[], host_blocks=host_blocks)
    scheduler = Scheduler(BlockManager(blocks, 4), max_seqs=8, max_batched_tokens=budget, **scheduling)
    return Engine(scheduler, runner, Observer(trail), eos_ids=[])


TECHNIQUES = {
    "chunked prefill": {},
    "whole prompts": {"chunked_prefill": False},
    "prefix caching": {"prefix_caching": True},
    "pressure": {"blocks": 26, "watermark_blocks": 0},
    "swap": {"blocks": 26, "watermark_blocks": 0, "host_blocks": 26},
    "little swap": {"blocks": 26, "watermark_blocks": 0, "host_blocks": 9, "prefix_caching": True},
    "speculation": {"speculative_tokens": 5, "drafter": PromptLookup(1)},
    "static batching": {"static_batching": True, "prefix_caching": True},
    "all": {"blocks": 32, "prefix_caching": True, "host_blocks": 24, "watermark_blocks": 0, "speculative_tokens": 3},
}


@pytest.mark.parametrize("technique", TECHNIQUES)
def test_answers_as_transformers(tiny, technique):
    model, _, expected = tiny
    trail = MemoryTrail()
    options = {"blocks": 200, "budget": 24} | TECHNIQUES[technique]
    engine = engine_of(model, trail, **options)
    requests = [
        make_request(trail, prompt, max_tokens=NEW_TOKENS, n=1 + i % 2, priority=-i % 3)
        for i, prompt in enumerate(PROMPTS)
    ]
    sequences = [sequence for request in requests for sequence in request.sequences]
    answers = run_all(engine, sequences)
    for request, answer in zip(requests, expected, strict=True):
        for sequence in request.sequences:
            assert answers[sequence][0] == answer
    assert engine.scheduler.block_manager.num_used_blocks == 0
    assert (engine._observer.latencies.preemptions > 0) == (options["blocks"] < 200)


@pytest.mark.parametrize(("name", "as_floats"), [("int8", 0.7), ("int4", 0.05)])
def test_a_quantised_cache_answers_the_same_with_each_technique(tiny, name, as_floats):
    exact, _, expected = tiny
    config, weights = exact.config, exact.weights
    model = Llama(config, weights, 256, kv_format(name, config.head_dim, torch.float32, torch.device("cpu")))
    found = {}
    for technique in ("whole prompts", "all"):
        trail = MemoryTrail()
        engine = engine_of(model, trail, **{"blocks": 200, "budget": 24} | TECHNIQUES[technique])
        sequences = [make_sequence(trail, prompt, max_tokens=NEW_TOKENS) for prompt in PROMPTS]
        answers = run_all(engine, sequences)
        found[technique] = [answers[sequence][0] for sequence in sequences]
    assert found["whole prompts"] == found["all"]
    same = [matching(ours, theirs) for ours, theirs in zip(found["all"], expected, strict=True)]
    assert as_floats < sum(same) / (NEW_TOKENS * len(PROMPTS)) < 1


@pytest.mark.parametrize("budget", [100, 24])
def test_logprobs_as_transformers(tiny, budget):
    model, reference, expected = tiny
    trail = MemoryTrail()
    requests = [make_request(trail, p, max_tokens=4, logprobs=2, prompt_logprobs=1, n=2) for p in PROMPTS[:4]]
    engine = engine_of(model, trail, blocks=200, budget=budget, prefix_caching=True)
    told = {}
    for request in requests:
        engine.add(request)
    while engine.busy:
        for output in engine.step():
            told.setdefault(output.sequence, []).extend(output.logprobs)
    for request, prompt, answer in zip(requests, PROMPTS, expected, strict=False):
        with torch.inference_mode():
            logits = reference(torch.tensor([prompt + answer[:4]])).logits[0]
        logprobs = logits.log_softmax(-1)
        leader = request.sequences[0]
        assert [item.token_id for item in leader.prompt_logprobs] == prompt[1:]
        for position, item in enumerate(leader.prompt_logprobs):
            assert item.logprob == pytest.approx(logprobs[position, prompt[position + 1]].item(), abs=1e-3)
            assert item.top[0][1] == pytest.approx(logprobs[position].max().item(), abs=1e-3)
        for sequence in request.sequences:
            assert [item.token_id for item in told[sequence]] == answer[:4]
            for place, item in enumerate(told[sequence]):
                row = logprobs[len(prompt) - 1 + place]
                assert item.logprob == pytest.approx(row.max().item(), abs=1e-3)
                assert [value for _, value in item.top] == pytest.approx(row.topk(2).values.tolist(), abs=1e-3)


LIKELY = (10, 11, 12)
BEFORE = [50, 10, 11, 12, 10]


def sampled_pairs(model, count, **scheduling):
    """The first two tokens of `count` answers that consist of LIKELY alone, and the tokens accepted and drafted."""
    bias = tuple((token, 100.0) for token in LIKELY)
    request = make_request(MemoryTrail(), BEFORE, n=count, max_tokens=3, temperature=1.0, logit_bias=bias, seed=11)
    engine = engine_of(model, MemoryTrail(), blocks=99, budget=64, **scheduling)
    answers = run_all(engine, request.sequences)
    pairs = [tuple(tokens[:2]) for tokens, _, _ in answers.values()]
    return pairs, request.num_accepted_tokens, request.num_drafted_tokens


def test_sampled_tokens_have_the_models_distribution(tiny):
    model, reference, _ = tiny
    count = 300
    pairs, accepted, drafted = sampled_pairs(model, count, speculative_tokens=2, drafter=PromptLookup(1))
    assert 0 < accepted < drafted
    plain, _, none = sampled_pairs(model, count)
    assert none == 0
    assert pairs == plain, "each place has its own random number, with and without a draft"

    def likely(tokens):
        with torch.inference_mode():
            logits = reference(torch.tensor([tokens])).logits[0, -1, list(LIKELY)]
        return list(zip(LIKELY, logits.softmax(-1).tolist(), strict=True))

    expected = {(a, b): p * q for a, p in likely(BEFORE) for b, q in likely([*BEFORE, a])}
    found = Counter(pairs)
    assert found.keys() <= expected.keys()
    chi_square = sum((found[pair] - count * p) ** 2 / (count * p) for pair, p in expected.items())
    assert chi_square < 30, "with 8 degrees of freedom, one in 5,000 is above"


@pytest.mark.parametrize("technique", ["whole prompts", "chunked prefill", "prefix caching", "speculation"])
def test_a_request_that_is_not_numbers_fails_and_leaves_nothing_to_those_that_get_its_blocks(tiny, technique):
    """A mask of minus infinity hides no NaN, whether it lies in unused places of a block or in another block."""
    model, _, answers = tiny
    count = 32
    engine = engine_of(
        model, MemoryTrail(), **{"blocks": count, "budget": 16, "watermark_blocks": 0} | TECHNIQUES[technique]
    )
    usual = model.weights.embedding[90].clone()
    model.weights.embedding[90] = torch.nan
    try:
        prompt = [3] * 40 + [90] + [3] * (4 * count - 60)
        [bad] = make_request(MemoryTrail(), prompt, max_tokens=9).sequences
        with pytest.raises(ArithmeticError, match="NaN"):
            run_all(engine, [bad])
        some = [i for i, answer in enumerate(answers) if 90 not in PROMPTS[i] + answer]
        for chosen in (some[:1], some[1:2], some):
            requests = [make_request(MemoryTrail(), PROMPTS[i], max_tokens=NEW_TOKENS) for i in chosen]
            sequences = [sequence for request in requests for sequence in request.sequences]
            outputs = run_all(engine, sequences)
            assert [outputs[sequence][0] for sequence in sequences] == [answers[i] for i in chosen]
    finally:
        model.weights.embedding[90] = usual
