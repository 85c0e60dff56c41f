"""A gate for releases: is it good, is it worse, or is that not decided yet? It may be asked as often as one likes.

Each question is about a share of requests: those that are bad, or those that are slower than a common percentile. The
evidence against a share is a likelihood ratio that grows to 1/α with a probability of α at most while the share is
true (`chance.evidence`), so a gate that is asked every minute errs as rarely as one that is asked once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log
from typing import Final, Literal

import numpy as np
from pydantic import Field

from collector.answer import Answer
from collector.measure.answers import WindowOut
from collector.measure.chance import Floats, Sample, evidence, is_clustered, share_errors
from collector.measure.compare import listed
from collector.measure.evaluation import Counted, count
from collector.measure.population import read_ended
from collector.measure.reader import Reader
from collector.measure.sides import LATENCIES, Rows, alike_samples, read_rows
from collector.measure.slices import slices
from collector.measure.window import Window
from collector.slo.cells import Cells
from collector.slo.counts import Counts
from collector.slo.model import Slo
from tokentrail.shared.formatting import THRESHOLDS, duration, percent, significant
from tokentrail.shared.formatting import count as digits

ALPHA: Final = 0.05
"""The probability that something that is as good as asked for is ever called worse, or something worse good."""
_BLOCKS: Final = 20
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
    numbers: list[Judged]


@dataclass(frozen=True)
class Share:
    """A share of requests, as that of so many independent ones."""

    hits: float
    n: float

    @property
    def share(self) -> float | None:
        """The share; None without requests."""
        return self.hits / self.n if self.n else None


def bad_share(reader: Reader, counted: Counted, slo: Slo) -> Share:
    """The bad requests among the judged ones. Bad requests that came together count as fewer."""
    tally, errors = counted.requests.tally, counted.errors
    if not tally.judged:
        return Share(0.0, 0.0)
    bad, n = float(tally.bad), float(tally.judged)
    p, variance = bad / n, bad * (n - bad) / n**3
    if errors and errors.attainment and 0 < p < 1:
        variance += errors.attainment**2
    bad_by_block, by_block = _by_block(reader, slo, counted.window)
    deviations = bad_by_block - p * by_block
    clustered = float((deviations**2).sum()) / n**2 * _BLOCKS / (_BLOCKS - 1)
    if 0 < p < 1 and is_clustered(clustered, variance, _BLOCKS):
        variance = clustered
    fewer = p * (1 - p) / variance / n if variance else 1.0
    return Share(bad * min(fewer, 1.0), n * min(fewer, 1.0))


def _by_block(reader: Reader, slo: Slo, window: Window) -> tuple[Floats, Floats]:
    """The bad and the judged requests that ended in each of the blocks of a window."""
    edges = np.linspace(window.end_ns, window.start_ns, _BLOCKS + 1).astype(np.int64).tolist()
    ended = read_ended(reader.queries, window.filter, Cells([slo]), slices(edges))
    outcomes = ended.judged.of_all_slos()
    blocks = ended.by_band({"bad": outcomes.bad, "judged": outcomes.bad | outcomes.good}).values()
    return np.array([one["bad"] for one in blocks], float), np.array([one["judged"] for one in blocks], float)


def against_objective(checked: Share, budget: float, relevant: float) -> Judged:
    """The bad share against the budget, and against a budget that is larger by the relevant share."""
    worse = evidence(checked.hits, checked.n, budget) if (checked.share or 0.0) > budget else 0.0
    return Judged.of("bad share", budget, checked.share, worse, _keeps(checked, budget, relevant), numbers=1)


def _keeps(checked: Share, budget: float, relevant: float) -> float:
    """The evidence that the bad share is below a budget that is larger by the relevant share."""
    larger = min(budget * (1 + relevant), 1 - 1e-9)
    return evidence(checked.hits, checked.n, larger) if checked.n and (checked.share or 0.0) < larger else 0.0


def against_share(a: Share, b: Share, budget: float, relevant: float, of: int) -> Judged:
    """The bad share of two sides. It is good, too, where nothing says that B is worse and B keeps the objective."""
    worse = good = 0.0
    if a.n and b.n:
        hits = a.hits + b.hits
        if (b.share or 0.0) > (a.share or 0.0):
            worse = evidence(b.hits, hits, b.n / (a.n + b.n))
        if (b.share or 0.0) < (a.share or 0.0) * (1 + relevant):
            good = evidence(b.hits, hits, b.n * (1 + relevant) / (a.n + b.n * (1 + relevant)))
    if worse < log(of / ALPHA):
        good = max(good, _keeps(b, budget, relevant))
    return Judged.of("bad share", a.share, b.share, worse, good, numbers=of)


def against_latency(name: str, pair: tuple[Sample, Sample], level: float, relevant: float, of: int) -> Judged:
    """A percentile of two sides: how many requests of each are above a percentile of both.

    While the percentiles are equal, the requests above it are B's as often as requests are B's. For a relevant
    difference, the same is asked of B's latencies divided by 1 + relevant.
    """
    a, b = pair
    worse = _above(a, b, level, worse=True)
    good = _above(a, replace(b, values=b.values / (1 + relevant)), level, worse=False)
    return Judged.of(name, a.quantile(level) / 1e9, b.quantile(level) / 1e9, worse, good, numbers=of)


def _above(a: Sample, b: Sample, level: float, *, worse: bool) -> float:
    """The evidence that a percentile of B is larger than that of A (`worse`), or smaller."""
    weights = [side.weights / side.weights.sum() for side in (a, b)]
    values, pooled = np.concatenate([a.values, b.values]), np.concatenate(weights)
    order = np.argsort(values)
    limit = values[order][np.searchsorted(pooled[order].cumsum(), 2 * level)]
    above = [side.values > limit if limit < values[order[-1]] else side.values >= limit for side in (a, b)]
    shares = [float(weight[which].sum()) for weight, which in zip(weights, above, strict=True)]
    expected = sum(shares) / 2
    if (shares[1] > shares[0]) != worse or not 0 < expected < 1:
        return 0.0
    side_errors, correlation = share_errors((a, b), [one[None] for one in above], np.array([expected]))
    errors, common = [float(one[0]) for one in side_errors], float(correlation[0])
    alone, apart = errors[0] ** 2 + errors[1] ** 2, 2 * common * errors[0] * errors[1]
    fewer = alone / (alone - apart) if apart < alone else 1.0
    n = [
        min(expected * (1 - expected) / error**2 * fewer, float(side.n))
        for error, side in zip(errors, (a, b), strict=True)
    ]
    hits = [share * one for share, one in zip(shares, n, strict=True)]
    return evidence(hits[1], sum(hits), n[1] / sum(n))


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

    counted: Counted
    bad: Share
    rows: Rows


def read(reader: Reader, slo: Slo, window: Window, vantage: Sequence[str], *, with_rows: bool) -> Checked:
    """Read one side. Its latencies are needed for a comparison alone."""
    counted = count(reader, window, vantage, [slo])
    bad = bad_share(reader, counted, slo)
    return Checked(counted, bad, read_rows(reader, counted.window, counted.requests.total)[0] if with_rows else {})


def check(
    slo: Slo, checked: Checked, against: Checked | None, *, objective: float, quantile: float, relevant: float
) -> Check:
    """The verdict on `checked`, against the objective or another side."""
    budget = 1 - objective
    if against is None:
        numbers = [against_objective(checked.bad, budget, relevant)]
    else:
        pairs = {name: alike_samples(against.rows, checked.rows, name) for name in LATENCIES}
        known = {name: pair for name, pair in pairs.items() if pair}
        of = len(known) + 1
        numbers = [against_share(against.bad, checked.bad, budget, relevant, of)]
        word = f"P{significant(100 * quantile, 4).rstrip('0').rstrip('.')}"
        numbers += [
            against_latency(f"{word} {THRESHOLDS[name]}", pair, quantile, relevant, of) for name, pair in known.items()
        ]
    verdict = overall(numbers)
    return Check(
        verdict=verdict,
        value=VALUES[verdict],
        reason=_reason(verdict, numbers, checked, against, relevant),
        slo=slo.name,
        window=WindowOut.of(checked.counted.window, checked.counted.complete_ns),
        requests=checked.counted.requests,
        relevant=relevant,
        error=ALPHA,
        numbers=numbers,
    )


def _reason(
    verdict: Verdict, numbers: Sequence[Judged], checked: Checked, against: Checked | None, relevant: float
) -> str:
    n = digits(checked.counted.requests.tally.judged)
    n += "" if against is None else f" and {digits(against.counted.requests.tally.judged)}"
    if verdict == "good":
        return f"no number is worse by {percent(relevant)}: {n} judged requests"
    if verdict == "worse":
        return f"{listed([_difference(one) for one in numbers if one.verdict == 'worse'])}: {n} judged requests"
    if not checked.counted.requests.tally.judged:
        return "no request was judged: is traffic on its way, and does the SLO select it?"
    open_ = [one for one in numbers if one.verdict == "not decided"]
    return f"{n} judged requests do not decide {listed([one.name for one in open_])} to {percent(relevant)}"


def _difference(one: Judged) -> str:
    show = percent if one.name == "bad share" else duration
    return f"{one.name} {show(one.b)}, not {show(one.a)}"
