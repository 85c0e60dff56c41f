"""Tokens that come after their deadlines."""

import numpy as np
import pytest

from collector.causes.answer.deadlines import deadlines
from collector.slo.model import Slo, Thresholds

MS = 1_000_000


def slo(name="chat", **ms):
    given = {threshold: value * MS for threshold, value in ms.items()}
    return Slo.model_construct(None, name=name, thresholds=Thresholds.model_construct(None, **given))


def rows(offsets_ms):
    return [{"token_index": i, "offset_ns": None if at is None else at * MS} for i, at in enumerate(offsets_ms)]


def told(slos, offsets_ms):
    return [
        (d.slo, d.tokens, d.late_tokens, d.longest_late_s, d.latest_index) for d in deadlines(slos, rows(offsets_ms))
    ]


@pytest.mark.parametrize(
    ("offsets_ms", "late"),
    [
        ([500, 600, 700], (3, 0, 0.0, None)),
        ([500, 601, 700], (3, 1, 0.001, 1)),
        ([100, 110, 4_000, 4_010], (4, 2, 3.3, 2)),  # a freeze, and it catches up afterwards
        ([900, 910, 920, 930, 900], (5, 4, 0.4, 0)),
        ([501], (1, 1, 0.001, 0)),
        ([100, None, 4_000], (2, 1, 3.3, 2)),
    ],
)
def test_the_kth_token_is_due_after_ttft_and_k_times_tpot(offsets_ms, late):
    assert told([slo(ttft=500, tpot=100)], offsets_ms) == [("chat", *late)]


def test_only_slos_with_both_thresholds_have_deadlines():
    slos = [slo("a", ttft=500), slo("b", tpot=100), slo("c", ttft=1, tpot=1), slo("d", e2e=1, gap=1)]
    assert [one[0] for one in told(slos, [5, 6])] == ["c"]
    assert told(slos, []) == []
    assert told(slos, [None, None]) == []


def test_holding_tokens_back_makes_none_less_late():
    """Any token may be held back by any time, and those behind it stay where they are or wait for it."""
    chance, promise = np.random.default_rng(7), [slo(ttft=50, tpot=10)]
    eased = 0
    for _ in range(500):
        offsets = np.sort(chance.integers(1, 400, chance.integers(2, 30)))
        held = np.maximum.accumulate(
            offsets + chance.integers(0, 100, len(offsets)) * (chance.random(len(offsets)) < 0.3)
        )
        (before,), (after,) = (deadlines(promise, rows(at.tolist())) for at in (offsets, held))
        assert after.late_tokens >= before.late_tokens
        assert after.longest_late_s >= before.longest_late_s
        eased += np.diff(held).max() < np.diff(offsets).max()
    assert eased > 5  # the longest gap can be made shorter so
