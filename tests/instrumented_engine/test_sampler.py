import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from instrumented_engine.model.sampler import HEAD, Row, logprobs, sample
from tokentrail.testing import MemoryTrail

from .support import make_sequence

TRAIL = MemoryTrail()
LOGITS = torch.tensor([[2.0, 1.0, 0.0, -1.0, 3.0]])


def drawn(count=4000, logits=LOGITS, **params):
    """Relative frequencies of `count` draws."""
    row, rng = Row.after(make_sequence(TRAIL, [1], **params)), random.Random(1)
    rows = [replace(row, uniform=rng.random()) for _ in range(count)]
    tokens = sample(logits.repeat(count, 1), rows, [])
    return np.bincount(tokens, minlength=logits.shape[1]) / count


def softmax(values):
    weights = np.exp(np.array(values) - np.max(values))
    return weights / weights.sum()


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"temperature": 1.0}, softmax([2, 1, 0, -1, 3])),
        ({"temperature": 2.0}, softmax([1, 0.5, 0, -0.5, 1.5])),
        ({"temperature": 1.0, "top_k": 2}, softmax([2, -np.inf, -np.inf, -np.inf, 3])),
        ({"temperature": 1.0, "top_p": 0.7}, softmax([2, -np.inf, -np.inf, -np.inf, 3])),
        ({"temperature": 1.0, "top_p": 0.6}, [0, 0, 0, 0, 1]),
        ({"temperature": 1.0, "top_k": 2, "top_p": 0.74}, softmax([2, -np.inf, -np.inf, -np.inf, 3])),
        ({"temperature": 1.0, "top_k": 2, "top_p": 0.73}, [0, 0, 0, 0, 1]),
        ({"temperature": 1.0, "min_p": 0.2}, softmax([2, -np.inf, -np.inf, -np.inf, 3])),
        ({"temperature": 1.0, "top_k": 1}, [0, 0, 0, 0, 1]),
        ({"temperature": 1e-9}, [0, 0, 0, 0, 1]),
        ({"temperature": 0.0}, [0, 0, 0, 0, 1]),
    ],
)
def test_frequencies_follow_the_parameters(params, expected):
    # 4,000 draws: a standard deviation is at most 0.008.
    np.testing.assert_allclose(drawn(**params), expected, atol=0.04)


def test_the_seed_decides_and_the_batch_does_not():
    logits = torch.randn((6, 500), generator=torch.Generator().manual_seed(3))

    def row(i, company):
        sequences = [make_sequence(TRAIL, [1], seed=10 + j, temperature=1.0, top_p=0.9) for j in [i, *company]]
        return sample(logits[[i, *company]].clone(), [Row.after(sequence) for sequence in sequences], [])[0]

    assert [row(i, []) for i in range(6)] == [row(i, [j for j in range(6) if j != i]) for i in range(6)]
    assert len({tuple(drawn(20, logits[:1], temperature=1.0)) for _ in range(3)}) == 1


def test_rows_keep_their_own_parameters():
    logits = torch.tensor([[0.0, 5.0, 1.0]] * 3)
    sequences = [
        make_sequence(TRAIL, [1], temperature=0.0),
        make_sequence(TRAIL, [1], temperature=1.0, top_k=1),
        make_sequence(TRAIL, [1], temperature=0.0, min_tokens=1),
    ]
    assert sample(logits, [Row.after(sequence) for sequence in sequences], [1]) == [1, 1, 2], (
        "the third may not end yet"
    )


VOCABULARY = 2 * HEAD


def nucleus(logits, *, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0):
    """Ids that may be drawn, by the definition and without a shortcut."""
    p = softmax(logits.double().numpy() / temperature)
    order = np.argsort(-p)
    kept = order[: top_k or None]
    share = p[kept] / p[kept].sum()
    kept = kept[np.cumsum(share) - share < top_p]
    return {int(i) for i in kept if p[i] >= min_p * p.max()}


@pytest.mark.parametrize(
    "params",
    [
        {"top_p": 0.5},
        {"top_p": 0.95},
        {"top_k": 700},
        {"top_k": 1024},
        {"top_k": 1025},
        {"top_k": 1500, "top_p": 0.6},
        {"top_k": VOCABULARY},
        {"top_k": 9999},
        {"min_p": 0.05},
        {"min_p": 0.9},
        {"temperature": 3.0, "top_p": 0.9, "min_p": 0.01},
    ],
)
def test_a_flat_vocabulary_reaches_beyond_the_head(params):
    logits = torch.randn((1, VOCABULARY), generator=torch.Generator().manual_seed(2)) * 0.5
    params = {"temperature": 1.0} | params
    allowed = nucleus(logits[0], **params)
    frequencies = drawn(1000, logits, **params)
    found = set(np.flatnonzero(frequencies).tolist())
    assert found <= allowed
    # With replacement, 1,000 draws of near-equal chances see many of the allowed tokens.
    assert len(found) > 0.3 * min(len(allowed), 1000)
    # The tail beyond the sorted head is drawn as often as its mass says (a standard deviation is at most 0.016).
    weight = softmax(logits[0].double().numpy() / params["temperature"])
    tail = sorted(allowed, key=lambda i: -weight[i])[HEAD:]
    share = weight[tail].sum() / weight[list(allowed)].sum()
    assert frequencies[tail].sum() == pytest.approx(share, abs=0.05)
    # The largest random number draws the last token that is allowed.
    largest = replace(Row.after(make_sequence(TRAIL, [1], **params)), uniform=1 - 1e-9)
    assert sample(logits.clone(), [largest], []) == [min(allowed, key=lambda i: weight[i])]


def adjusted(prompt, output, logits, **params):
    """The greedy token behind a prompt and an output."""
    sequence = make_sequence(TRAIL, prompt, **params)
    return sample(torch.tensor([logits]), [Row.after(sequence, output)], [0])[0]


@pytest.mark.parametrize(
    ("params", "chosen"),
    [
        ({}, 1),
        ({"logit_bias": ((1, -2.0), (2, -0.2))}, 3),
        ({"presence_penalty": 0.6}, 2),
        ({"presence_penalty": 0.4}, 1),
        ({"frequency_penalty": 0.3}, 2),
        ({"frequency_penalty": 0.2}, 1),
        ({"repetition_penalty": 1.3}, 3),
        ({"repetition_penalty": 1.05}, 1),
        ({"min_tokens": 3, "stop_token_ids": frozenset([1])}, 2),
        ({"min_tokens": 2, "stop_token_ids": frozenset([1])}, 1),
    ],
)
def test_bias_and_penalties(params, chosen):
    # The output has token 1 twice, the prompt token 2; logits 3.0 > 2.5 > 2.4 for the tokens 1, 2, 3.
    assert adjusted([2], [1, 1], [-1.0, 3.0, 2.5, 2.4], **params) == chosen


@pytest.mark.parametrize("logits", [[-1.0, -1.1], [0.5, 0.45]])
def test_a_repetition_penalty_lowers_each_logit_whatever_its_sign(logits):
    assert adjusted([0], [], logits, repetition_penalty=1.2) == 1


def test_a_draft_counts_as_output():
    sequence = make_sequence(TRAIL, [2], frequency_penalty=1.0)
    rows = [Row.after(sequence), Row.after(sequence, [1])]
    assert sample(torch.tensor([[0.0, 3.0, 2.5]] * 2), rows, []) == [1, 2]


def test_logprobs_are_those_of_the_softmax():
    logits = torch.tensor([[2.0, 1.0, 0.0], [0.0, 1.0, 5.0]])
    first, second = logprobs(logits, [1, 2], [2, 0])
    expected = np.log(softmax([2, 1, 0]))
    assert first.logprob == pytest.approx(expected[1], abs=1e-5)
    assert [token for token, _ in first.top] == [0, 1]
    assert [value for _, value in first.top] == pytest.approx(expected[:2], abs=1e-5)
    assert (second.token_id, second.top) == (2, ())
    assert first.entropy == pytest.approx(-(np.exp(expected) * expected).sum(), abs=1e-5)


def test_entropy_of_the_certain_and_of_the_undecided():
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.0], [0.0, -torch.inf, -torch.inf, -torch.inf]])
    undecided, certain = logprobs(logits, [1, 0], [0, 0])
    assert undecided.entropy == pytest.approx(np.log(4))
    assert certain.entropy == 0


def test_logits_without_logprobs_are_an_error():
    """An answer with NaN is no JSON. A token that cannot come has a log-probability: minus infinity."""
    logits = torch.tensor([[1.0, 2.0, 3.0], [1.0, float("nan"), 3.0]])
    for chosen in (0, 1):
        with pytest.raises(ArithmeticError, match="NaN"):
            logprobs(logits, [0, chosen], [0, 0])
    masked = logits[:1].index_fill(1, torch.tensor([1]), -torch.inf)
    assert [told.logprob for told in logprobs(masked, [1], [0])] == [-torch.inf]
