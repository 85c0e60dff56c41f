"""What `/differences` says where requests depend on time and on sessions: whether something innocent is blamed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from collector.measure.candidates import Candidate, Met, told
from collector.measure.chance import Bools, Floats, Ints
from collector.measure.telling import Difference

REQUESTS: Final = 3000
MINUTES: Final = 60
LABELS: Final = 14
PLANTED: Final = {
    "14 labels": "",
    "60 instances": "",
    "bad sessions of ten requests": "",
    "all are bad for three minutes": "",
    "a burst of a tenant, all are bad": "tenant",
    "a tenant is bad for ten minutes": "tenant",
    "a version takes all traffic": "variant",
    "a version takes all traffic, bad five minutes later": "variant",
    "a version takes nine of ten": "variant",
}
"""What is at fault in each kind of traffic; '': nothing is."""


@dataclass(frozen=True)
class Hour:
    """Requests of an hour: the value of each dimension as a number, whether they are bad, and their minute."""

    values: Mapping[str, Ints]
    bad: Bools
    minute: Ints
    together: float = 1.0

    def told(self, *, by_time: bool) -> list[Difference]:
        """The differences of the bad ones. `by_time`: with the minutes of the requests."""
        one, rest = self.bad.astype(float), (~self.bad).astype(float)
        every = [("model", "m", np.ones(len(one), bool))]
        every += [(name, str(v), of == v) for name, of in self.values.items() for v in np.unique(of)]
        rows = [{"name": n, "value": v, "selected": one[of].sum(), "others": rest[of].sum()} for n, v, of in every]
        having = {(name, value): of for name, value, of in every}

        def count_met(best: Sequence[Candidate]) -> Met:
            met = np.stack([having[candidate.condition.dimension, str(candidate.bound)] for candidate in best], axis=1)
            return Met(met, one, rest, one, rest, block=self.minute if by_time else None)

        return told(rows, {}, count_met, self.together)[0]


def _wandering(random: np.random.Generator, minute: Ints, values: int) -> Ints:
    """A value for each request. The shares of the values wander by half of themselves, and forget in ten minutes."""
    level, shares = random.normal(size=values), np.empty((MINUTES, values))
    for i in range(MINUTES):
        level = 0.9 * level + np.sqrt(1 - 0.81) * random.normal(size=values)
        shares[i] = np.exp(0.5 * level) / np.arange(1, values + 1)
    until = (shares / shares.sum(axis=1, keepdims=True)).cumsum(axis=1)[minute]
    drawn: Ints = np.minimum((random.random(len(minute))[:, None] > until).sum(axis=1), values - 1)
    return drawn


def draw(random: np.random.Generator, kind: str) -> Hour:
    """Requests of one kind of traffic."""
    n, minute = REQUESTS, np.sort(random.integers(0, MINUTES, REQUESTS))
    values = {f"label.l{i}": _wandering(random, minute, 4) for i in range(LABELS)}
    values["tenant"] = _wandering(random, minute, 6)
    share: Floats = np.full(n, 0.05)
    since = int(random.integers(10, 45))
    then = (minute >= since) & (minute < since + 3)
    if kind == "60 instances":
        values["instance"] = random.integers(0, 60, n)
    elif kind == "bad sessions of ten requests":
        session = np.arange(n) // 10
        values = {name: random.choice(of, n // 10)[session] for name, of in values.items()}
        bad = random.random(n) < np.where(random.random(n // 10)[session] < 0.05, 0.8, 0.01)
        s, p = np.bincount(session, bad), bad.mean()
        together = float(((s - 10 * p) ** 2).sum() / (n * p * (1 - p)))
        return Hour(values, bad, random.integers(0, MINUTES, n // 10)[session], max(together, 1.0))
    elif kind in ("all are bad for three minutes", "a burst of a tenant, all are bad"):
        share = np.where(then, 0.6, 0.02)
        if PLANTED[kind]:
            values["tenant"] = np.where(then & (random.random(n) < 0.6), 5, values["tenant"])
    elif kind == "a tenant is bad for ten minutes":
        share = np.where((minute >= since) & (minute < since + 10) & (values["tenant"] == 2), 0.6, 0.03)
    elif PLANTED[kind] == "variant":
        new = (minute >= since) & (random.random(n) < (0.9 if "nine" in kind else 1.0))
        values["variant"] = new.astype(np.int64)
        share = np.where(new & (minute >= since + 5 * ("later" in kind)), 0.2, 0.03)
    return Hour(values, random.random(n) < share, minute)


def blamed(seeds: int) -> dict[str, dict[str, int]]:
    """In how many draws something innocent is named, and what is at fault is first: as it is, and without minutes."""
    numbers = {}
    for kind, planted in PLANTED.items():
        random = np.random.default_rng(1)
        counts = dict.fromkeys(("innocent", "first", "innocent without minutes", "first without minutes"), 0)
        for _ in range(seeds):
            hour = draw(random, kind)
            for by_time, word in ((True, ""), (False, " without minutes")):
                found = [{trait.dimension for trait in one.conditions} for one in hour.told(by_time=by_time)]
                counts[f"innocent{word}"] += any(planted not in names for names in found)
                counts[f"first{word}"] += bool(planted and found and planted in found[0])
        numbers[kind] = counts
    return numbers
