"""Two sets of requests compared: which is slower, by how much, and whether chance alone explains the difference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import ceil, inf, log, sqrt
from statistics import NormalDist
from typing import Final, Literal

import numpy as np
from pydantic import Field

from collector.base.answer import Answer
from collector.compare.alike import mix_differs
from collector.compare.chance import Z_95, Floats, Interval, Ratios, Sample, ShareErrors, difference, share
from collector.compare.sides import LATENCIES, Rows, Side, SideOut, alike_samples, alike_tokens, bad_samples, where
from collector.compare.strata import Strata
from collector.count.answers import LEVELS
from collector.slo.counts import Counts
from tokentrail.shared.formatting import THRESHOLDS, percent, significant
from tokentrail.shared.formatting import count as digits

_WORDS: Final = {"input": "prompt tokens", "cached": "cached tokens", "output": "output tokens"}
_Z_POWER: Final = 1.644854
_SLOWLY: Final = 2.0
"""Traffic that wanders slowly must differ by so many times as much."""
_LEAST_OF_STRATUM: Final = 200
_MOST_PARTS: Final = 10
_MUCH: Final = 0.01
"""A part of the requests from which on it is told that it is undetermined."""
_OTHER_LOAD: Final = 1.25
"""A load that is larger by a quarter may be a reason of its own."""

Kind = Literal["worse", "better", "mixed", "same", "not decided"]


class IntervalOut(Answer):
    """An estimate with its 95 % interval. `null` bounds: so few requests do not bound it on that side."""

    estimate: float
    low: float | None
    high: float | None

    @classmethod
    def of(cls, interval: Interval) -> IntervalOut:
        """The interval as answers give it. A ratio that may be anything from 0 has no lower bound."""
        low, high = (bound if 0 < abs(bound) < inf else None for bound in (interval.low, interval.high))
        return cls(estimate=interval.estimate, low=low, high=high)


class MixOut(Answer):
    """The medians of a number that makes requests slow by itself. `differs`: the sides have another mix."""

    a: float | None
    b: float | None
    differs: bool


class StratumOut(Answer):
    """The verdict on the requests of one tenant, model, operation, SLO class or label."""

    by: str
    value: str
    kind: Kind
    ratios: dict[str, IntervalOut] = Field(description="B ÷ A of the P99 of each latency that has bounds")


class Comparison(Answer):
    """`/compare`: B against A."""

    verdict: str
    kind: Kind
    relevant: float = Field(description="Differences up to this share are called the same")
    a: SideOut
    b: SideOut
    ratios: dict[str, dict[str, IntervalOut]] = Field(
        description="B ÷ A of each latency's percentiles, like for like. Without a percentile: nothing to compare"
    )
    attainment: IntervalOut | None = Field(description="Attainment of B less that of A, like for like")
    like_for_like_by: list[str]
    strata: list[StratumOut] = Field(description="Parts of the traffic whose verdict is another one than that of all")
    one_of: int = Field(description="Intervals are from one of so many requests of the larger side")
    mix: dict[str, MixOut]
    warnings: list[str]
    more_requests: dict[str, int] | None = Field(
        description="Requests that would show a relevant difference of P99 TTFT, by side; null: enough, or not known"
    )


def compare(a: Side, b: Side, relevant: float, strata: Strata, cut: str = "") -> Comparison:
    """B against A. Differences up to the share `relevant` are called the same. `cut`: what was cut of their times."""
    samples = {name: alike_samples(a.rows, b.rows, name) for name in LATENCIES}
    compared = {name: Ratios(*pair, [*LEVELS.values()]) for name, pair in samples.items() if pair}
    tokens = alike_tokens((a.rows, b.rows), (a.tokens, b.tokens))
    of_tokens = {"itl": Ratios(*tokens, [*LEVELS.values()])} if tokens else {}
    ratios = {name: _ratios(found) for name, found in (compared | of_tokens).items()}
    slow = any(found.slow for found in compared.values())
    z = _z_of(len(compared) + 1)
    deciding = {name: one for name, found in compared.items() if (one := found.interval(0.99, z))}
    judged = _Attainment.of(a.rows, b.rows)
    attainment = judged.interval(Z_95) if judged else None
    decide = z * _SLOWLY if slow else z
    surely = {name: one for name, found in compared.items() if (one := found.interval(0.99, decide))}
    kind, reason = _verdict(surely, judged.interval(decide) if judged else None, relevant)
    kind = "not decided" if slow and kind == "same" else kind
    apart = [*_strata(a, b, strata, relevant)]
    if is_mixed := {one.kind for one in apart} >= {"worse", "better"}:
        kind = "mixed"
    decided = [one for one in apart if one.kind not in {kind, "not decided"}]
    others = [one for one in decided if {one.kind, kind} & {"worse", "better", "mixed"}]
    more = _more_requests(samples["ttft"], deciding.get("ttft"), relevant, z) if kind == "not decided" else None
    known = [name for name in _WORDS if any(np.isfinite(side.rows[name]).any() for side in (a, b))]
    like = [*(_WORDS[name] for name in known), *(one.word for one in strata.kinds)]
    mix = {name: _mix(a.rows[name], b.rows[name]) for name in known}
    slowly = slow and kind == "not decided"
    if is_mixed:
        verdict = f"{b.name} is worse than {a.name} in one part of the traffic and better in another"
    else:
        verdict = _SLOW if slowly else _sentence(kind, reason, a, b, ratios, attainment, like, more, relevant)
    return Comparison(
        verdict=verdict,
        kind=kind,
        relevant=relevant,
        a=a.answer(),
        b=b.answer(),
        ratios={name: {level: IntervalOut.of(one) for level, one in found.items()} for name, found in ratios.items()},
        attainment=None if attainment is None else IntervalOut.of(attainment),
        like_for_like_by=like,
        strata=others,
        one_of=max(a.one_of, b.one_of),
        mix=mix,
        warnings=[*([cut] if cut else []), *_warnings(a, b, mix), *told_strata(strata, others)],
        more_requests=None if slowly else more,
    )


_SLOW: Final = (
    "not decided: the traffic wanders too slowly for this time, which has seen fewer than ten of its swings: compare a "
    "longer time"
)


def _ratios(found: Ratios) -> dict[str, Interval]:
    return {name: one for name, level in LEVELS.items() if (one := found.interval(level))}


def _z_of(verdicts: int) -> float:
    """The standard errors within which each of some verdicts is decided, so that all are right at 95 %."""
    return NormalDist().inv_cdf(1 - 0.05 / (2 * verdicts))


class _Attainment:
    """The difference of attainment, like for like, from the least to the most that undetermined requests leave open."""

    def __init__(self, *pairs: tuple[Sample, Sample]) -> None:
        self._judged, *self._supposed = (_Shares(pair) for pair in pairs)

    @classmethod
    def of(cls, a: Rows, b: Rows) -> _Attainment | None:
        pairs = bad_samples(a, b)
        return cls(*pairs) if pairs else None

    def interval(self, z: float) -> Interval:
        """The estimate of the judged requests, and the bounds under each supposition."""
        judged, *others = (one.interval(z) for one in (self._judged, *self._supposed))
        return Interval(
            judged.estimate, min([judged.low, *(o.low for o in others)]), max([judged.high, *(o.high for o in others)])
        )


class _Shares:
    """The difference of the shares of good requests."""

    def __init__(self, pair: tuple[Sample, Sample]) -> None:
        self._pair = pair
        inside = [side.values > 0 for side in pair]
        self._bad = [
            float(side.weights[bad].sum() / side.weights.sum()) for side, bad in zip(pair, inside, strict=True)
        ]
        self._errors = ShareErrors(pair, [bad[None] for bad in inside], np.array([max(sum(self._bad) / 2, 1e-9)]))

    def interval(self, z: float) -> Interval:
        """Wilson's intervals of as many independent requests as the errors tell, and their difference."""
        shares = []
        for side, bad, error in zip(self._pair, self._bad, self._errors.at(z), strict=True):
            n = float(side.n)
            if 0 < bad < 1 and error[0] > 0:
                n = min(n, bad * (1 - bad) / float(error[0]) ** 2)
            shares.append(share((1 - bad) * n, n, z))
        return difference(*shares)


def _strata(a: Side, b: Side, strata: Strata, relevant: float) -> Iterator[StratumOut]:
    """The verdict on each part of the traffic: by the dimensions whose mix differs, and then on the largest others."""
    parts = []
    for one in strata.kinds:
        for place, value in enumerate(one.values, 1):
            least = min(np.count_nonzero(side.rows[f"by {one.name}"] == place) for side in (a, b))
            if least >= _LEAST_OF_STRATUM:
                parts.append((not one.differs, -least, one, place, value))
    chosen = [part[2:] for part in sorted(parts, key=lambda part: part[:2])[:_MOST_PARTS]]
    z = _z_of(max(len(chosen), 1) * (len(LATENCIES) + 1))
    for one, place, value in chosen:
        sides = [where(side.rows, side.rows[f"by {one.name}"] == place) for side in (a, b)]
        pairs = {name: alike_samples(sides[0], sides[1], name) for name in LATENCIES}
        found = {name: Ratios(*pair, [0.5, 0.99]) for name, pair in pairs.items() if pair}
        decide = z * (_SLOWLY if any(each.slow for each in found.values()) else 1)
        intervals = {name: interval for name, each in found.items() if (interval := each.interval(0.99, decide))}
        judged = _Attainment.of(*sides)
        kind, _ = _verdict(intervals, judged.interval(decide) if judged else None, relevant)
        yield StratumOut(
            by=one.name, value=value, kind=kind, ratios={name: IntervalOut.of(each) for name, each in intervals.items()}
        )


def told_strata(strata: Strata, others: Sequence[StratumOut]) -> Iterator[str]:
    """Where the sides have another mix of tenants, models or labels, and where a part has another verdict."""
    for one in (one for one in strata.kinds if one.differs):
        value, of_a, of_b = one.most_apart()
        shares = f"{percent(of_a)} and {percent(of_b)} of the requests"
        yield f"the mix of {one.word} differs ({value or 'not given'}: {shares}): requests are weighed to one mix"
    for other in others:
        yield f"{other.by} {other.value or 'not given'} alone: {other.kind}"


def _verdict(deciding: Mapping[str, Interval], attainment: Interval | None, relevant: float) -> tuple[Kind, str]:
    """What the numbers decide together, and the name of the number that says it most clearly."""
    worse = {name: one.low for name, one in deciding.items() if one.low > 1}
    better = {name: 1 / one.high for name, one in deciding.items() if one.high < 1}
    if attainment and attainment.high < 0:
        worse["attainment"] = 1 - attainment.high
    if attainment and attainment.low > 0:
        better["attainment"] = 1 + attainment.low
    same = all(1 / (1 + relevant) <= one.low and one.high <= 1 + relevant for one in deciding.values())
    if deciding and same and not {"attainment"} & {*worse, *better}:
        return "same", ""
    if worse and better:
        return "mixed", max(worse, key=worse.__getitem__)
    if worse:
        return "worse", max(worse, key=worse.__getitem__)
    if better:
        return "better", max(better, key=better.__getitem__)
    return "not decided", ""


def _more_requests(
    pair: tuple[Sample, Sample] | None, interval: Interval | None, relevant: float, z: float
) -> dict[str, int] | None:
    """How many more requests of each side would show a relevant difference of P99 TTFT, 95 times of 100."""
    if pair is None or interval is None:
        return None
    wanted = log(1 + relevant) / (z + _Z_POWER)
    if interval.low > 0 and interval.high < inf:
        error = log(interval.high / interval.low) / (2 * z)
    else:  # too few for a bound: the percentiles below tell how steep the tail is
        steep = [log(max(side.quantile(0.99) / max(side.quantile(0.9), 1e-9), 1.001)) / log(10) for side in pair]
        error = sqrt(sum(slope**2 / (0.01 * side.n) for slope, side in zip(steep, pair, strict=True)))
    times = (error / wanted) ** 2
    return {name: ceil(side.n * (times - 1)) for name, side in zip("ab", pair, strict=True)} if times > 1 else None


def _mix(a: Floats, b: Floats) -> MixOut:
    middle = [float(np.median(known)) if (known := side[np.isfinite(side)]).size else None for side in (a, b)]
    return MixOut(a=middle[0], b=middle[1], differs=mix_differs(a, b))


def _warnings(a: Side, b: Side, mix: Mapping[str, MixOut]) -> Iterator[str]:
    for side in (a, b):
        if not side.counted.requests.total:
            yield f"{side.name} has no request that ended in its time"
    empty = [side.name for side in (a, b) if not len(side.rows["key"])]
    for name, one in mix.items() if not empty else ():
        if one.a is None or one.b is None:
            yield f"one side does not tell its {_WORDS[name]}, so requests are not compared by them"
        elif one.differs:
            yield f"the {_WORDS[name]} differ (medians {one.a:.0f} and {one.b:.0f}): ratios are of similar requests"
    running = [side.running or 0.0 for side in (a, b)]
    if min(running) > 0 and max(running) / min(running) > _OTHER_LOAD:
        yield f"the load differs: {significant(running[0], 2)} and {significant(running[1], 2)} requests ran at a time"
    yield from told_undetermined({side.name: side.counted.requests for side in (a, b)})
    of_a, of_b = (side.rows["slos"][np.isfinite(side.rows["bad"])] for side in (a, b))
    if len(of_a) and len(of_b) and not np.isin(of_a, of_b).any():
        yield f"other SLOs judge the requests of {a.name} than those of {b.name}, so attainment is not compared"
    if a.one_of * b.one_of > 1:
        yield f"intervals are from one of {max(a.one_of, b.one_of)} requests; all others are from all"


def told_undetermined(sides: Mapping[str, Counts]) -> Iterator[str]:
    """The sides of which nobody tells of a part of the requests whether they were good."""
    for name, of in sides.items():
        share = of.undetermined / max(of.undetermined + of.tally.judged, 1)
        if share >= _MUCH:
            yield f"nobody tells whether {percent(share)} of the requests of {name} were good or bad"


def _sentence(
    kind: Kind,
    reason: str,
    a: Side,
    b: Side,
    ratios: Mapping[str, Mapping[str, Interval]],
    attainment: Interval | None,
    by: Sequence[str],
    more: Mapping[str, int] | None,
    relevant: float,
) -> str:
    n = f"{_count(a)} and {_count(b)} requests"
    like = f", like for like by {listed(by)}" if by else ""
    if kind == "same":
        return f"{b.name} is as fast as {a.name}, within {percent(relevant)}: {n}{like}"
    if kind == "not decided":
        if more:
            return (
                f"not decided: about {digits(more['a'])} more requests of {a.name} and {digits(more['b'])} of {b.name}"
                f" would show a difference of {percent(relevant)}; {n}"
            )
        return f"not decided: {n}"
    if reason == "attainment" and attainment:
        low, high = _points(attainment.low), _points(attainment.high)
        why = f"attainment {_points(attainment.estimate)} points ({low} to {high})"
    else:
        why = f"P99 {THRESHOLDS[reason]} × {_times(ratios[reason]['p99'])}"
    if kind == "mixed":
        return f"{b.name} is worse in one thing and better in another than {a.name}: {why}, {n}{like}"
    word = kind if reason == "attainment" else {"worse": "slower", "better": "faster"}[kind]
    return f"{b.name} is {word} than {a.name}: {why}, {n}{like}"


def _count(side: Side) -> str:
    return digits(side.counted.requests.total)


def _times(interval: Interval) -> str:
    high = f"{interval.high:.2f}" if interval.high < inf else "no bound"
    return f"{interval.estimate:.2f} ({interval.low:.2f} to {high})"


def _points(share: float) -> str:
    return f"{share * 100:+.2f}"


def listed(words: Sequence[str]) -> str:
    """Words in a sentence: `a, b and c`."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
