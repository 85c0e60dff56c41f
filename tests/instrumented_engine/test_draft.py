"""Speculation with a second model changes no answer, and its cache equals one that is computed from nothing."""

import pytest
import torch
import transformers

from instrumented_engine.core.block_manager import hash_block
from instrumented_engine.device import open_device
from instrumented_engine.model.draft import Contents, DraftModel, matching
from instrumented_engine.model.errors import ModelError
from instrumented_engine.model.llama import Llama
from instrumented_engine.model.weights import open_model
from instrumented_engine.settings import Settings
from instrumented_engine.startup import _draft
from tokentrail.testing import MemoryTrail

from .support import make_request, make_sequence, request_span, run_all
from .test_model import save_tiny
from .test_techniques import NEW_TOKENS, PROMPTS, engine_of, one_thread, tiny

__all__ = ["one_thread", "tiny"]
FEW = 12
TECHNIQUES = {
    "alone": {},
    "pressure": {"blocks": 26, "watermark_blocks": 0, "prefix_caching": True},
    "swap": {"blocks": 26, "watermark_blocks": 0, "host_blocks": 26},
    "static batching": {"static_batching": True, "chunked_prefill": False, "budget": 100},
}


@pytest.fixture(scope="module")
def noisy(tiny, tmp_path_factory):
    """The tiny model with some noise in its weights: it guesses some tokens right."""
    folder = tmp_path_factory.mktemp("noisy")
    reference = transformers.LlamaForCausalLM(tiny[1].config).eval()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for own, other in zip(reference.parameters(), tiny[1].parameters(), strict=True):
            own.copy_(other + 0.015 * torch.randn(other.shape, generator=generator))
    reference.save_pretrained(folder)
    file = open_model(folder)
    return Llama(file.config(), file.weights(torch.float32, torch.device("cpu")), 256)


def drafter_of(model, blocks=200, max_rows=1000):
    return DraftModel(model, kv_blocks=blocks, block_size=4, eos_ids=[], max_rows=max_rows)


class Checked:
    """Compares each draft with the one that is computed from nothing."""

    def __init__(self, model, blocks, max_rows):
        self.drafter = drafter_of(model, blocks, max_rows)
        self.other = drafter_of(model, blocks)

    def propose(self, limits):
        self.other._contents.forget()
        drafts = self.drafter.propose(limits)
        expected = self.other.propose(limits)
        for sequence, draft in drafts.items():
            assert draft in ([], expected[sequence])
        return drafts


@pytest.mark.parametrize("technique", TECHNIQUES)
def test_answers_and_drafts_do_not_depend_on_the_technique(tiny, noisy, technique):
    model, _, expected = tiny
    trail = MemoryTrail()
    options = {"blocks": 200, "budget": 24} | TECHNIQUES[technique]
    drafter = Checked(noisy, options["blocks"], options["budget"])
    engine = engine_of(model, trail, speculative_tokens=3, drafter=drafter, **options)
    requests = [make_request(trail, prompt, max_tokens=FEW, n=1 + i % 2) for i, prompt in enumerate(PROMPTS[::2])]
    answers = run_all(engine, [sequence for request in requests for sequence in request.sequences])
    for request, answer in zip(requests, expected[::2], strict=True):
        assert [answers[sequence][0] for sequence in request.sequences] == [answer[:FEW]] * len(request.sequences)
    drafted = sum(request.num_drafted_tokens for request in requests)
    accepted = sum(request.num_accepted_tokens for request in requests)
    assert 0.2 * drafted < accepted < 0.95 * drafted
    assert engine.scheduler.block_manager.num_used_blocks == 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_model_that_drafts_for_itself_is_always_right(tiny, temperature):
    """A drafted token is sampled with the random number of its place, by the same parameters."""
    model, _, _ = tiny
    params = {"temperature": temperature, "top_p": 0.9, "presence_penalty": 0.5, "seed": 3, "max_tokens": NEW_TOKENS}

    def run(**scheduling):
        trail = MemoryTrail()
        requests = [make_request(trail, prompt, name=str(i), **params) for i, prompt in enumerate(PROMPTS[:3])]
        engine = engine_of(model, trail, blocks=200, budget=64, **scheduling)
        answers = run_all(engine, [request.sequences[0] for request in requests])
        return [tokens for tokens, _, _ in answers.values()], requests, trail

    plain, _, _ = run()
    found, requests, trail = run(speculative_tokens=4, drafter=drafter_of(model))
    assert found == plain
    for index, request in enumerate(requests):
        assert request.num_accepted_tokens == request.num_drafted_tokens >= 18
        attributes = request_span(trail, str(index)).attributes
        assert attributes["tokentrail.accepted_tokens"] == request.num_accepted_tokens
    steps = trail.spans("tokentrail.step")
    drafted = sum(step.attributes.get("tokentrail.step.drafted_tokens", 0) for step in steps)
    assert drafted == sum(request.num_drafted_tokens for request in requests)


def proposing(prompt, blocks):
    sequence = make_sequence(MemoryTrail(), prompt)
    sequence.block_table = blocks
    return sequence


def computed_rows(drafter, monkeypatch):
    """Collects the numbers of rows of each pass."""
    rows, pack = [], drafter._packer.pack

    def counted(found):
        rows.append(sum(len(one.token_ids) for one in found))
        return pack(found)

    monkeypatch.setattr(drafter._packer, "pack", counted)
    return rows


def test_a_pass_computes_what_the_cache_lacks(noisy, monkeypatch):
    drafter = drafter_of(noisy)
    rows = computed_rows(drafter, monkeypatch)
    sequence = proposing(PROMPTS[0][:10], list(range(4)))
    draft = drafter.propose({sequence: 3})[sequence]
    assert (len(draft), rows) == (3, [10, 1, 1])
    sequence.token_ids += [*draft, 7]
    drafter.propose({sequence: 1})
    assert rows[3:] == [2], "the last token of the draft, which was right, and the one behind it"
    rejected = drafter.propose({sequence: 2})[sequence]
    assert rows[4:] == [1, 1]
    sequence.token_ids += [rejected[0], (rejected[1] + 1) % 97]
    sequence.block_table.append(9)
    drafter.propose({sequence: 1})
    assert rows[6:] == [1], "the first token of the draft was right, the second is replaced"
    follower = proposing(sequence.token_ids[:9], [0, 1, 20])
    drafter.propose({follower: 1})
    assert rows[7:] == [1], "two blocks are shared"


def test_a_long_prompt_is_computed_in_parts_and_drafts_later(noisy, monkeypatch):
    drafter = drafter_of(noisy, max_rows=6)
    rows = computed_rows(drafter, monkeypatch)
    long, short = proposing(PROMPTS[0][:10], [0, 1, 2]), proposing([1, 2, 3], [3])
    assert drafter.propose({long: 2, short: 1}) == {long: [], short: []}
    second = drafter.propose({long: 1, short: 1})
    assert (len(second[long]), len(second[short])) == (1, 0)
    assert [len(d) for d in drafter.propose({long: 1, short: 1}).values()] == [1, 1]
    assert rows == [6, 6, 2]
    assert second[long] == drafter_of(noisy).propose({long: 1})[long]


def test_a_draft_model_that_fails_ends_the_drafts_and_forgets(noisy, monkeypatch, caplog):
    drafter = drafter_of(noisy)
    sequence = proposing([1, 2, 3], [0, 1])
    expected = drafter.propose({sequence: 2})
    forward = noisy.forward

    def fail(*_):
        raise failure

    for failure in (MemoryError("no memory"), RuntimeError("bad kernel"), ArithmeticError("logits are NaN")):
        monkeypatch.setattr(noisy, "forward", fail)
        assert drafter.propose({sequence: 2}) == {sequence: []}
        assert str(failure) in caplog.text
    monkeypatch.setattr(noisy, "forward", forward)
    rows = computed_rows(drafter, monkeypatch)
    assert drafter.propose({sequence: 2}) == expected
    assert rows == [3, 1]


def test_layers_of_the_model_itself_are_shared_and_other_tokens_refused(tmp_path):
    save_tiny(tmp_path / "own")
    save_tiny(tmp_path / "other", vocab_size=98)
    own, other = tmp_path / "own", tmp_path / "other"
    speculation = {"speculative_tokens": 2, "speculative_keep_layers": "0,2"}
    settings = Settings(model=str(own), speculative_model=str(own), device="cpu", dtype="float32", **speculation)
    device = open_device(settings)
    model = device.load(open_model(own), settings, 64)
    draft = _draft(settings, own, device, model, 64)
    assert draft.weights.layers == [model.weights.layers[0], model.weights.layers[2]]
    assert draft.config.layers == 2
    copied = settings.model_copy(update={"keep_layers": "0,2", "kv_cache_dtype": "int8"})
    draft = _draft(copied, own, device, device.load(open_model(own, "0,2"), copied, 64), 64)
    assert [layer is own for layer, own in zip(draft.weights.layers, model.weights.layers, strict=False)] == [False] * 2
    assert draft.new_cache(5, 4).shape == (2, 5, 4, 4, 8 + 2)
    with pytest.raises(ModelError, match="--speculative-model has 98 tokens, and the model 97"):
        _draft(settings, other, device, model, 64)
    with pytest.raises(ModelError, match=r"^--speculative-keep-layers 4: "):
        _draft(settings.model_copy(update={"speculative_keep_layers": "4"}), own, device, model, 64)


def test_contents_of_blocks():
    contents, size = Contents(4), 4

    def hashes(tokens):
        found = [b""]
        for start in range(0, len(tokens) - size + 1, size):
            found.append(hash_block(found[-1], tokens[start : start + size]))
        return found

    def held(table, tokens):
        return contents.held(table, tokens, hashes(tokens))

    def replace(table, tokens, start):
        contents.replace(table, tokens, hashes(tokens), start)

    tokens = list(range(10))
    assert held([7, 9, 2], tokens) == 0
    replace([7, 9, 2], tokens, 0)
    assert held([7, 9, 2], tokens) == 10
    assert held([7, 9, 2], [*tokens[:9], 5, 6]) == 9
    assert held([7, 9, 2], tokens[:6]) == 6
    assert held([7, 5, 2], tokens) == 4, "another block"
    assert held([7, 9], tokens) == 8, "a block is missing"
    assert held([7, 9, 2], [*range(3), 99, *range(4, 10)]) == 3
    replace([9], [4, 5, 6, 7], 0)
    assert held([7, 9, 2], tokens) == 4, "the same tokens behind others"
    replace([7, 9, 2], tokens, 5)
    assert held([7, 9, 2], tokens) == 10
    assert held([9], [4, 5, 6, 7]) == 0
    contents.forget()
    assert held([7, 9, 2], tokens) == 0


@pytest.mark.parametrize(("a", "b", "count"), [("", "x", 0), ("ab", "a", 1), ("ab", "abc", 2), ("ab", "cb", 0)])
def test_matching(a, b, count):
    assert matching(a, b) == count
