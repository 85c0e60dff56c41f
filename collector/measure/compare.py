"""Two sets of requests compared: which is slower, by how much, and whether chance alone explains the difference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import ceil, inf, log, sqrt
from statistics import NormalDist
from typing import Final, Literal

import numpy as np
from pydantic import Field

from collector.answer import Answer
from collector.measure.alike import mix_differs
from collector.measure.answers import LEVELS
from collector.measure.chance import Z_95, Floats, Interval, Ratios, Sample, difference, share
from collector.measure.sides import LATENCIES, Side, SideOut, alike_samples, alike_tokens
from tokentrail.shared.formatting import THRESHOLDS, percent
from tokentrail.shared.formatting import count as digits

_WORDS: Final = {"input": "prompt tokens", "cached": "cached tokens", "output": "output tokens"}
_Z_POWER: Final = 1.644854
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
    attainment: IntervalOut | None = Field(description="Attainment of B less that of A, as they are")
    like_for_like_by: list[str]
    one_of: int = Field(description="Intervals are from one of so many requests of the larger side")
    mix: dict[str, MixOut]
    warnings: list[str]
    more_requests: dict[str, int] | None = Field(
        description="Requests that would show a relevant difference of P99 TTFT, by side; null: enough, or not known"
    )


def compare(a: Side, b: Side, relevant: float) -> Comparison:
    """B against A. Differences of up to the share `relevant` are called the same."""
    samples = {name: alike_samples(a.rows, b.rows, name) for name in LATENCIES}
    compared = {name: Ratios(*pair, [*LEVELS.values()]) for name, pair in samples.items() if pair}
    tokens = alike_tokens((a.rows, b.rows), (a.tokens, b.tokens))
    of_tokens = {"itl": Ratios(*tokens, [*LEVELS.values()])} if tokens else {}
    ratios = {name: _ratios(found) for name, found in (compared | of_tokens).items()}
    z = _z_of(len(compared) + 1)
    deciding = {name: one for name, found in compared.items() if (one := found.interval(0.99, z))}
    attainment = _attainment(a, b, Z_95)
    kind, reason = _verdict(deciding, _attainment(a, b, z), relevant)
    more = _more_requests(samples["ttft"], deciding.get("ttft"), relevant, z) if kind == "not decided" else None
    known = [name for name in _WORDS if any(np.isfinite(side.rows[name]).any() for side in (a, b))]
    mix = {name: _mix(a.rows[name], b.rows[name]) for name in known}
    return Comparison(
        verdict=_sentence(kind, reason, a, b, ratios, attainment, known, more, relevant),
        kind=kind,
        relevant=relevant,
        a=a.answer(),
        b=b.answer(),
        ratios={name: {level: IntervalOut.of(one) for level, one in found.items()} for name, found in ratios.items()},
        attainment=None if attainment is None else IntervalOut.of(attainment),
        like_for_like_by=[_WORDS[name] for name in known],
        one_of=max(a.one_of, b.one_of),
        mix=mix,
        warnings=list(_warnings(a, b, mix, more)),
        more_requests=more,
    )


def _ratios(found: Ratios) -> dict[str, Interval]:
    return {name: one for name, level in LEVELS.items() if (one := found.interval(level))}


def _z_of(verdicts: int) -> float:
    """The standard errors within which each of some verdicts is decided, so that all are right at 95 %."""
    return NormalDist().inv_cdf(1 - 0.05 / (2 * verdicts))


def _attainment(a: Side, b: Side, z: float) -> Interval | None:
    shares = []
    for side in (a, b):
        requests, errors = side.counted.requests, side.counted.errors
        attainment, n = requests.attainment, requests.tally.judged
        if attainment is None:
            return None
        if errors and errors.attainment and 0 < attainment < 1:  # sampled: as many requests as are as uncertain
            n = 1 / (1 / n + errors.attainment**2 / (attainment * (1 - attainment)))
        shares.append(share(attainment * n, n, z))
    return difference(*shares)


def _verdict(deciding: Mapping[str, Interval], attainment: Interval | None, relevant: float) -> tuple[Kind, str]:
    """What the numbers decide together, and the name of the number that says it most clearly."""
    worse = {name: one.low for name, one in deciding.items() if one.low > 1}
    better = {name: 1 / one.high for name, one in deciding.items() if one.high < 1}
    if attainment and attainment.high < 0:
        worse.setdefault("attainment", 1 - attainment.high)
    if attainment and attainment.low > 0:
        better.setdefault("attainment", 1 + attainment.low)
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


def _warnings(a: Side, b: Side, mix: Mapping[str, MixOut], more: Mapping[str, int] | None) -> Iterator[str]:
    for side in (a, b):
        if not side.counted.requests.total:
            yield f"{side.name} has no request that ended in its time"
    for name, one in mix.items():
        if one.a is None or one.b is None:
            yield f"one side does not tell its {_WORDS[name]}, so requests are not compared by them"
        elif one.differs:
            yield f"the {_WORDS[name]} differ (medians {one.a:.0f} and {one.b:.0f}): ratios are of similar requests"
    running = [side.running or 0.0 for side in (a, b)]
    if min(running) > 0 and max(running) / min(running) > _OTHER_LOAD:
        yield f"the load differs: {running[0]:.1f} and {running[1]:.1f} requests ran at a time"
    if a.one_of * b.one_of > 1:
        yield f"intervals are from one of {max(a.one_of, b.one_of)} requests; all others are from all"


def _sentence(
    kind: Kind,
    reason: str,
    a: Side,
    b: Side,
    ratios: Mapping[str, Mapping[str, Interval]],
    attainment: Interval | None,
    known: Sequence[str],
    more: Mapping[str, int] | None,
    relevant: float,
) -> str:
    n = f"{_count(a)} and {_count(b)} requests"
    like = f", like for like by {listed([_WORDS[name] for name in known])}" if known else ""
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
        by = f"attainment {_points(attainment.estimate)} points ({low} to {high})"
    else:
        by = f"P99 {THRESHOLDS[reason]} × {_times(ratios[reason]['p99'])}"
    if kind == "mixed":
        return f"{b.name} is worse in one thing and better in another than {a.name}: {by}, {n}{like}"
    word = kind if reason == "attainment" else {"worse": "slower", "better": "faster"}[kind]
    return f"{b.name} is {word} than {a.name}: {by}, {n}{like}"


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
