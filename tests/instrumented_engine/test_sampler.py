import numpy as np
import pytest
import torch

from instrumented_engine.model.sampler import HEAD, sample
from tokentrail.testing import MemoryTrail

from .support import make_sequence

TRAIL = MemoryTrail()
LOGITS = torch.tensor([[2.0, 1.0, 0.0, -1.0, 3.0]])


def drawn(count=4000, logits=LOGITS, **params):
    """Relative frequencies of `count` draws."""
    sequence = make_sequence(TRAIL, [1], seed=1, **params)
    rows = logits.repeat(count, 1)
    tokens = sample(rows, [sequence] * count, [])
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
        return sample(logits[[i, *company]].clone(), sequences, [])[0]

    assert [row(i, []) for i in range(6)] == [row(i, [j for j in range(6) if j != i]) for i in range(6)]
    assert len({tuple(drawn(20, logits[:1], temperature=1.0)) for _ in range(3)}) == 1


def test_rows_keep_their_own_parameters():
    logits = torch.tensor([[0.0, 5.0, 1.0]] * 3)
    sequences = [
        make_sequence(TRAIL, [1], temperature=0.0),
        make_sequence(TRAIL, [1], temperature=1.0, top_k=1),
        make_sequence(TRAIL, [1], temperature=0.0, min_tokens=1),
    ]
    assert sample(logits, sequences, [1]) == [1, 1, 2], "the third may not end yet"


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
        {"top_k": 3000, "top_p": 0.3},
        {"top_k": 5000},
        {"top_k": 9999},
        {"min_p": 0.05},
        {"min_p": 0.9},
        {"temperature": 3.0, "top_p": 0.9, "min_p": 0.01},
    ],
)
def test_a_flat_vocabulary_reaches_beyond_the_head(params):
    logits = torch.randn((1, 5000), generator=torch.Generator().manual_seed(2)) * 0.5
    params = {"temperature": 1.0} | params
    allowed = nucleus(logits[0], **params)
    frequencies = drawn(3000, logits, **params)
    found = set(np.flatnonzero(frequencies).tolist())
    assert found <= allowed
    # With replacement, 3,000 draws of near-equal chances see most of what is allowed.
    assert len(found) > 0.3 * min(len(allowed), 3000)
    # The tail beyond the sorted head is drawn as often as its mass says (a standard deviation is at most 0.01).
    weight = softmax(logits[0].double().numpy() / params["temperature"])
    tail = sorted(allowed, key=lambda i: -weight[i])[HEAD:]
    share = weight[tail].sum() / weight[list(allowed)].sum()
    assert frequencies[tail].sum() == pytest.approx(share, abs=0.05)
