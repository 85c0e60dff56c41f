"""A gate for releases: is it good, is it worse, or is that not decided yet? It may be asked as often as one likes.

Each question is about a share of requests: those that are bad, or those that are slower than a common percentile. The
evidence against a share is a likelihood ratio that grows to 1/α with a probability of α at most while the share is
true (`chance.evidence`), so a gate that is asked every minute errs as rarely as one that is asked once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log, sqrt
from typing import Final, Literal

import numpy as np
from pydantic import Field

from collector.ask.slices import slices
from collector.ask.times import SECOND_NS
from collector.ask.window import Window
from collector.base.answer import Answer
from collector.compare.chance import Bools, Floats, Sample, ShareErrors, evidence
from collector.compare.compare import listed, told_strata
from collector.compare.sides import LATENCIES, Rows, alike_samples, read_rows
from collector.compare.strata import NO_STRATA, Strata
from collector.compare.wandering import BLOCKS, wandering
from collector.count.answers import WindowOut
from collector.count.evaluation import Counted, count
from collector.count.population import read_ended
from collector.count.reader import Reader
from collector.slo.cells import Cells
from collector.slo.counts import Counts
from collector.slo.model import Slo
from tokentrail.shared.formatting import THRESHOLDS, duration, percent, significant
from tokentrail.shared.formatting import count as digits

ALPHA: Final = 0.05
"""The probability that something that is as good as asked for is ever called worse, or something worse good."""
_Z: Final = 2.5
"""Errors are those at which so many leave out what a normal variable leaves out: evidence is about rare chances."""
_BODY: Final = (0.9, 0.5)
"""Percentiles that tell early that all values of a side moved."""
_MOST_EVIDENCE: Final = 700.0
"""The logarithm of the largest number that JSON readers take."""

Verdict = Literal["good", "worse", "not decided"]
VALUES: Final[Mapping[Verdict, int]] = {"good": 1, "not decided": 0, "worse": -1}


class Judged(Answer):
    """One number that the gate looks at."""

    name: str
    verdict: Verdict
    a: float | None = Field(description="Of the other side, or what the objective allows")
    b: float | None = Field(description="Of the requests that are checked")
    evidence_of_worse: float = Field(description="How many times likelier the requests are if it is not as good as A")
    evidence_of_good: float = Field(description="How many times likelier if it is not worse by the relevant difference")

    @classmethod
    def of(cls, name: str, a: float | None, b: float | None, worse: float, good: float, *, numbers: int) -> Judged:
        """The verdict by logarithms of evidence. Worse must be shown against all numbers, good for each of them."""
        verdict: Verdict = "not decided"
        if good >= log(1 / ALPHA):
            verdict = "good"
        elif worse >= log(numbers / ALPHA):
            verdict = "worse"
        worse, good = (exp(min(one, _MOST_EVIDENCE)) for one in (worse, good))
        return cls(name=name, verdict=verdict, a=a, b=b, evidence_of_worse=worse, evidence_of_good=good)


class Check(Answer):
    """`/check`."""

    verdict: Verdict
    value: int = Field(description="1 good, 0 not decided, -1 worse")
    reason: str
    slo: str
    window: WindowOut
    requests: Counts
    relevant: float
    error: float = Field(description="The probability of a wrong verdict, however often it is asked")
    empty: str | None = Field(description="The side that has no judged request; null: none")
    seen_s: float = Field(description="The time in which requests ended that are checked, in which both sides ran")
    slow: bool = Field(description="The traffic wanders too slowly for this time to tell how far")
    warnings: list[str]
    numbers: list[Judged]


@dataclass(frozen=True)
class Share:
    """A share of requests."""

    hits: float
    n: float
    moved: Floats | None = None
    """By how much each block of time moves it; None: the requests are independent."""
    seconds: float = 0.0
    """The length of the blocks together."""
    judged: Floats | None = None
    """The requests in each block."""
    more: float = 0.0
    """Variance that comes from sampling."""

    @property
    def share(self) -> float | None:
        """The share; None without requests."""
        return self.hits / self.n if self.n else None

    def if_true(self, limit: float) -> tuple[Share, bool]:
        """As that of so many independent requests as tell as much, if the share is this limit; and whether it wanders
        too slowly to know that.
        """
        if self.moved is None or not self.n:
            return self, False
        seen = min(sqrt((self.hits + 1) / (self.n + 2) * limit), limit)
        alone, expected = (p * (1 - p) / self.n + self.more for p in (seen, limit))
        found = wandering(
            self.moved[None], np.array([alone]), np.array([seen]), self.seconds,
            if_true=(np.array([expected]), np.array([limit])),
        )  # fmt: skip
        n = min(self.n, limit * (1 - limit) / float(found.error(_Z)[0]) ** 2)
        return Share(self.hits / self.n * n, n), bool(found.slow[0])


def bad_share(reader: Reader, counted: Counted, slo: Slo) -> Share:
    """The bad requests among the judged ones, and how they came together."""
    tally, errors = counted.requests.tally, counted.errors
    if not tally.judged:
        return Share(0.0, 0.0)
    bad, n = float(tally.bad), float(tally.judged)
    bad_by_block, by_block = _by_block(reader, slo, counted.window)
    moved = (bad_by_block - by_block * bad_by_block.sum() / max(by_block.sum(), 1.0)) / n
    more = errors.attainment**2 if errors and errors.attainment and 0 < bad < n else 0.0
    return Share(bad, n, moved, counted.window.seconds, by_block, more)


def _by_block(reader: Reader, slo: Slo, window: Window) -> tuple[Floats, Floats]:
    """The bad and the judged requests that ended in each of the blocks of a window, the latest first."""
    edges = np.linspace(window.end_ns, window.start_ns, BLOCKS + 1).astype(np.int64).tolist()
    ended = read_ended(reader.queries, window.filter, Cells([slo]), slices(edges))
    outcomes = ended.judged.of_all_slos()
    blocks = ended.by_band({"bad": outcomes.bad, "judged": outcomes.bad | outcomes.good})
    counts = np.zeros((2, BLOCKS))
    for band, of_band in blocks.items():
        counts[:, band - 1] = of_band["bad"], of_band["judged"]
    return counts[0], counts[1]


def against_objective(checked: Share, budget: float, relevant: float, *, young: bool = False) -> Judged:
    """The bad share against the budget, and against a budget that is larger by the relevant share.

    `young`: it was not seen for long enough to be good.
    """
    worse = 0.0
    if (checked.share or 0.0) > budget:
        told, _ = checked.if_true(budget)
        worse = evidence(told.hits, told.n, budget)
    good = 0.0 if young else _keeps(checked, budget, relevant)
    return Judged.of("bad share", budget, checked.share, worse, good, numbers=1)


def _keeps(checked: Share, budget: float, relevant: float) -> float:
    """The evidence that the bad share is below a budget that is larger by the relevant share."""
    larger = min(budget * (1 + relevant), 1 - 1e-9)
    if not checked.n or (checked.share or 0.0) >= larger:
        return 0.0
    told, _ = checked.if_true(larger)
    return evidence(told.hits, told.n, larger)


def against_share(
    pair: tuple[Sample, Sample] | None, b: Share, budget: float, relevant: float, of: int, *, young: bool = False
) -> Judged:
    """The bad share of two sides, like for like. It is good, too, where nothing says that B is worse and B keeps the
    objective: `b` is its bad share as it is.
    """
    worse = good = 0.0
    shares: list[float | None] = [None, b.share]
    if pair:
        told_a, told_b = _as_independent(pair, [side.values > 0 for side in pair])
        shares = [told_a.share, told_b.share]
        hits = told_a.hits + told_b.hits
        if (told_b.share or 0.0) > (told_a.share or 0.0):
            worse = evidence(told_b.hits, hits, told_b.n / (told_a.n + told_b.n))
        if (told_b.share or 0.0) < (told_a.share or 0.0) * (1 + relevant):
            larger = told_b.n * (1 + relevant)
            good = evidence(told_b.hits, hits, larger / (told_a.n + larger))
    if pair and worse < log(of / ALPHA):
        good = max(good, _keeps(b, budget, relevant))
    return Judged.of("bad share", shares[0], shares[1], worse, 0.0 if young else good, numbers=of)


def against_latency(
    name: str, pair: tuple[Sample, Sample], level: float, relevant: float, of: int, *, young: bool = False
) -> Judged:
    """A percentile of two sides: how many requests of each are above a percentile of both.

    While the percentiles are equal, the requests above it are B's as often as requests are B's. For a relevant
    difference, the same is asked of B's latencies divided by 1 + relevant. Where the percentile of B is larger, lower
    percentiles tell with it whether all values moved: the evidence is the mean of all.
    """
    a, b = pair
    levels = [level, *(lower for lower in _BODY if lower < level)]
    worse = _mean([_above(a, b, each, worse=True) for each in levels]) if b.quantile(level) > a.quantile(level) else 0.0
    good = 0.0 if young else _above(a, replace(b, values=b.values / (1 + relevant)), level, worse=False)
    return Judged.of(name, a.quantile(level) / 1e9, b.quantile(level) / 1e9, worse, good, numbers=of)


def _mean(logs: Sequence[float]) -> float:
    """The logarithm of the mean of evidence: while nothing differs, it grows as rarely as each."""
    largest = max(logs)
    return largest + log(sum(exp(one - largest) for one in logs) / len(logs))


def _above(a: Sample, b: Sample, level: float, *, worse: bool) -> float:
    """The evidence that a percentile of B is larger than that of A (`worse`), or smaller."""
    weights = [side.weights / side.weights.sum() for side in (a, b)]
    values, pooled = np.concatenate([a.values, b.values]), np.concatenate(weights)
    order = np.argsort(values)
    limit = values[order][np.searchsorted(pooled[order].cumsum(), 2 * level)]
    above = [side.values > limit if limit < values[order[-1]] else side.values >= limit for side in (a, b)]
    shares = [float(weight[which].sum()) for weight, which in zip(weights, above, strict=True)]
    if (shares[1] > shares[0]) != worse or not 0 < sum(shares) < 2:
        return 0.0
    middle = values[order][np.searchsorted(pooled[order].cumsum(), 1.0)]
    told_a, told_b = _as_independent((a, b), above, [side.values > middle for side in (a, b)])
    return evidence(told_b.hits, told_a.hits + told_b.hits, told_b.n / (told_a.n + told_b.n))


def _as_independent(
    pair: tuple[Sample, Sample], inside: Sequence[Bools], body: Sequence[Bools] | None = None
) -> list[Share]:
    """The weighted shares on two sides, of so many independent requests as tell as much.

    `body`: the upper half of the values, which tells most of how they wander.
    """
    shares = [float(side.weights[in_].sum() / side.weights.sum()) for side, in_ in zip(pair, inside, strict=True)]
    expected = min(max(sum(shares) / 2, 1e-9), 1 - 1e-9)
    rows = [np.stack(some) for some in (zip(inside, body, strict=True) if body else ((one,) for one in inside))]
    seen = max(
        min(shares), 1 / pair[0].n
    )  # while both sides are as good as the better one, they wander around its share
    around = np.array([sqrt(seen * expected), 0.5][: len(rows[0])])
    errors = ShareErrors(pair, rows, np.array([expected, 0.5][: len(rows[0])]), around).at(_Z)
    told = []
    for side, share, error in zip(pair, shares, errors, strict=True):
        n = min(expected * (1 - expected) / float(error[0]) ** 2, float(side.n))
        told.append(Share(share * n, n))
    return told


def overall(numbers: Sequence[Judged]) -> Verdict:
    """Worse when one number is, good when all are."""
    if any(number.verdict == "worse" for number in numbers):
        return "worse"
    if numbers and all(number.verdict == "good" for number in numbers):
        return "good"
    return "not decided"


@dataclass(frozen=True)
class Checked:
    """The requests of one side that an SLO judges."""

    name: str
    counted: Counted
    bad: Share
    rows: Rows


def read(reader: Reader, name: str, slo: Slo, window: Window, vantage: Sequence[str], strata: Strata | None) -> Checked:
    """Read one side. `strata`: by what its requests are compared with another side's; None: with none."""
    counted = count(reader, window, vantage, [slo])
    bad = bad_share(reader, counted, slo)
    return Checked(name, counted, bad, {} if strata is None else read_rows(reader, counted, [slo], strata)[0])


def check(
    slo: Slo,
    checked: Checked,
    against: Checked | None,
    *,
    objective: float,
    quantile: float,
    relevant: float,
    least_ns: int,
    strata: Strata = NO_STRATA,
    cut: str = "",
) -> Check:
    """The verdict on `checked`, against the objective or another side. Good needs to be seen for `least_ns`."""
    budget, seen_s = 1 - objective, _seen_s(checked)
    young = seen_s * SECOND_NS < least_ns
    if against is None:
        numbers = [against_objective(checked.bad, budget, relevant, young=young)]
    else:
        pairs = {name: alike_samples(against.rows, checked.rows, name) for name in LATENCIES}
        known = {name: pair for name, pair in pairs.items() if pair}
        of = len(known) + 1
        bad = alike_samples(against.rows, checked.rows, "bad")
        numbers = [against_share(bad, checked.bad, budget, relevant, of, young=young)]
        word = f"P{significant(100 * quantile, 4).rstrip('0').rstrip('.')}"
        numbers += [
            against_latency(f"{word} {THRESHOLDS[name]}", pair, quantile, relevant, of, young=young)
            for name, pair in known.items()
        ]
    verdict = overall(numbers)
    slow = checked.bad.if_true(min(budget * (1 + relevant), 1 - 1e-9))[1]
    reason = _reason(verdict, numbers, checked, against, relevant)
    if verdict == "not decided" and young and checked.bad.n:
        reason += f"; good needs {duration(least_ns / SECOND_NS)} of traffic, of which {duration(seen_s)} are seen"
    elif verdict == "not decided" and slow:
        reason += "; the traffic wanders too slowly for this time: ask about a longer one"
    return Check(
        verdict=verdict,
        value=VALUES[verdict],
        reason=reason,
        slo=slo.name,
        window=WindowOut.of(checked.counted.window, checked.counted.complete_ns),
        requests=checked.counted.requests,
        relevant=relevant,
        error=ALPHA,
        empty=next((one.name for one in (checked, against) if one and not one.counted.requests.tally.judged), None),
        seen_s=seen_s,
        slow=slow,
        warnings=[*([cut] if cut else []), *told_strata(strata, ())],
        numbers=numbers,
    )


def _seen_s(checked: Checked) -> float:
    """Seconds from the first block with a request that was judged to the last one."""
    if not checked.bad.n or checked.bad.judged is None:
        return 0.0
    blocks = np.flatnonzero(checked.bad.judged)
    return float(np.ptp(blocks) + 1) * checked.bad.seconds / BLOCKS if blocks.size else 0.0


def _reason(
    verdict: Verdict, numbers: Sequence[Judged], checked: Checked, against: Checked | None, relevant: float
) -> str:
    n = digits(checked.counted.requests.tally.judged)
    n += "" if against is None else f" and {digits(against.counted.requests.tally.judged)}"
    if verdict == "good":
        bad = numbers[0]
        more = (bad.b or 0.0) > (bad.a or 0.0) * (1 + relevant) and against is not None
        but = f", but the bad share is {percent(bad.b)}, not {percent(bad.a)}, within the objective" if more else ""
        return f"no number is worse by {percent(relevant)}{but}: {n} judged requests"
    if verdict == "worse":
        return f"{listed([_difference(one) for one in numbers if one.verdict == 'worse'])}: {n} judged requests"
    for side in (checked, against):
        if side and not side.counted.requests.tally.judged:
            return f"no request of {side.name} was judged: is traffic on its way, and does the SLO select it?"
    open_ = [one for one in numbers if one.verdict == "not decided"]
    return f"{n} judged requests do not decide {listed([one.name for one in open_])} to {percent(relevant)}"


def _difference(one: Judged) -> str:
    show = percent if one.name == "bad share" else duration
    return f"{one.name} {show(one.b)}, not {show(one.a)}"
