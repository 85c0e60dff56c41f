"""Two sets of requests compared: which is slower, by how much, and whether chance alone explains the difference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, inf, log, sqrt
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from collector.answer import Answer
from collector.measure.alike import alike, mix_differs
from collector.measure.answers import LEVELS, Distribution, WindowOut, per_s
from collector.measure.chance import Z_95, Interval, Sample, difference, ratio, share
from collector.measure.evaluation import Counted, count
from collector.measure.itl import itl
from collector.measure.latencies import estimated, exact
from collector.measure.reader import Reader
from collector.measure.window import Window
from collector.slo.counts import Counts, Number
from tokentrail.shared.formatting import count as digits
from tokentrail.shared.formatting import percent

Floats = npt.NDArray[np.float64]
Rows = Mapping[str, Floats]
"""Columns of sql/queries/compare_rows.sql, by name."""

LATENCIES: Final = {"ttft": ("input", "cached"), "tpot": ("input", "output"), "e2e": ("input", "cached", "output")}
"""The latencies that have intervals, and the tokens by which their requests are like each other."""
_WORDS: Final = {"input": "prompt tokens", "cached": "cached tokens", "output": "output tokens"}
_ROW: Final = ("start", "end", "weight", "ttft", "tpot", "e2e", "input", "cached", "output")
"""The columns of sql/queries/compare_rows.sql. Times are seconds, latencies nanoseconds."""
_MOST_ROWS: Final = 250_000
"""Of more requests a side, one of several is read for the intervals."""
_FEWEST: Final = 2
_BLOCKS: Final = 40
_PAUSE_S: Final = 900.0
"""Without a request for so long, a side has not run."""
_VERDICTS: Final = 4
"""P99 of TTFT, TPOT and E2E, and attainment: each is decided at an error of 5 % ÷ 4, so that all are right at 95 %."""
Z_VERDICT: Final = 2.497705
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


class SideOut(Answer):
    """One side of a comparison."""

    name: str
    window: WindowOut
    requests: Counts
    ran_s: float = Field(
        description="The time in which it ran: from its first request to its last, without long pauses"
    )
    requests_per_s: float | None = Field(description="Over `ran_s`, as all rates here")
    output_tokens_per_s: float | None
    goodput_per_s: float | None
    running: float | None = Field(description="Requests that ran at a time, on average over `ran_s`")
    attainment: float | None
    ttft_s: Distribution
    tpot_s: Distribution
    itl_s: Distribution
    e2e_s: Distribution


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


@dataclass(frozen=True)
class Side:
    """The requests of one side."""

    name: str
    counted: Counted
    rows: Rows
    one_of: int
    distributions: Mapping[str, Distribution]

    @cached_property
    def ran_s(self) -> float:
        """Seconds from the first start to the last end in the window, without pauses in which no request ran."""
        if not len(self.rows["start"]):
            return 0.0
        window = self.counted.window
        order = np.argsort(self.rows["start"])
        starts = np.maximum(self.rows["start"][order], window.start_ns / 1e9)
        until = np.maximum.accumulate(self.rows["end"][order])
        pauses = starts[1:] - until[:-1]
        return float(until[-1] - starts[0] - pauses[pauses > _PAUSE_S].sum())

    @property
    def running(self) -> float | None:
        """Requests that ran at a time, on average (Little's law)."""
        spans = (self.rows["end"] - self.rows["start"]) * self.rows["weight"] * self.one_of
        return float(spans.sum()) / self.ran_s if self.ran_s else None

    def answer(self) -> SideOut:
        """The side as the answer tells it."""
        requests, sums = self.counted.requests, self.counted.sums
        tokens = sums.get("tokens_out")
        return SideOut(
            name=self.name,
            window=WindowOut.of(self.counted.window, self.counted.complete_ns),
            requests=requests,
            ran_s=self.ran_s,
            requests_per_s=per_s(requests.total, self.ran_s),
            output_tokens_per_s=per_s(tokens, self.ran_s),
            goodput_per_s=per_s(requests.good if requests.good_is_known else None, self.ran_s),
            running=self.running,
            attainment=requests.attainment,
            **{f"{name}_s": self.distributions[name] for name in ("ttft", "tpot", "itl", "e2e")},
        )


def read_side(reader: Reader, name: str, window: Window, vantage: Sequence[str]) -> Side:
    """Read one side."""
    counted = count(reader, window, vantage, reader.slos)
    window = counted.window
    if counted.errors is None:
        latencies = exact(reader, window, counted.requests.ok)
    else:
        latencies, _ = estimated(reader, window)
    rows, one_of = read_rows(reader, window, counted.requests.total)
    with_itl = {**latencies, "itl": itl(reader.queries, window, counted.first_ns)}
    return Side(name, counted, rows, one_of, with_itl)


def read_rows(reader: Reader, window: Window, total: Number) -> tuple[Rows, int]:
    """What intervals are made from, of about `total` requests; and of how many one was read."""
    one_of = ceil(total / _MOST_ROWS) or 1
    table = reader.queries.array(
        "compare_rows", {"filter": window.filter}, (np.float64, len(_ROW)), of=one_of, **window.bounds
    )
    return dict(zip(_ROW, table.T, strict=True)), one_of


def compare(a: Side, b: Side, relevant: float) -> Comparison:
    """B against A. Differences of up to the share `relevant` are called the same."""
    samples = {name: alike_samples(a.rows, b.rows, name) for name in LATENCIES}
    ratios = {name: _ratios(pair, Z_95) for name, pair in samples.items() if pair}
    deciding = {name: found for name, pair in samples.items() if pair and (found := ratio(*pair, 0.99, Z_VERDICT))}
    attainment = _attainment(a, b, Z_95)
    kind, reason = _verdict(deciding, _attainment(a, b, Z_VERDICT), relevant)
    more = _more_requests(samples["ttft"], deciding.get("ttft"), relevant) if kind == "not decided" else None
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


def alike_samples(a: Rows, b: Rows, latency: str) -> tuple[Sample, Sample] | None:
    """The values of a latency, weighed like for like; None when a side has too few of them."""
    columns = LATENCIES[latency]
    rows = [{name: side[name][np.isfinite(side[latency])] for name in _ROW} for side in (a, b)]
    if min(len(one[latency]) for one in rows) < _FEWEST:
        return None
    lengths = [[one[name] for name in columns] for one in rows]
    found = alike(lengths[0], lengths[1], (rows[0]["weight"], rows[1]["weight"]))
    blocks = _blocks([one["end"] for one in rows])
    first, second = (
        Sample(one[latency], one["weight"] * factors, features, block)
        for one, factors, features, block in zip(rows, found.factors, found.features, blocks, strict=True)
    )
    return first, second


def _blocks(ends: Sequence[Floats]) -> list[npt.NDArray[np.int64]]:
    """The block of time of each request, with the same numbers on both sides."""
    width = max(max(float(np.ptp(side)) for side in ends) / _BLOCKS, 1e-3)
    _, numbers = np.unique(np.floor(np.concatenate(ends) / width), return_inverse=True)
    return [numbers[: len(ends[0])], numbers[len(ends[0]) :]]


def _ratios(pair: tuple[Sample, Sample], z: float) -> dict[str, Interval]:
    found = {name: ratio(*pair, level, z) for name, level in LEVELS.items()}
    return {name: interval for name, interval in found.items() if interval is not None}


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
    pair: tuple[Sample, Sample] | None, interval: Interval | None, relevant: float
) -> dict[str, int] | None:
    """How many more requests of each side would show a relevant difference of P99 TTFT, 95 times of 100."""
    if pair is None or interval is None:
        return None
    wanted = log(1 + relevant) / (Z_VERDICT + _Z_POWER)
    if interval.low > 0 and interval.high < inf:
        error = log(interval.high / interval.low) / (2 * Z_VERDICT)
    else:  # too few for a bound: the percentiles below tell how steep the tail is
        steep = [log(max(side.quantile(0.99) / max(side.quantile(0.9), 1e-9), 1.001)) / log(10) for side in pair]
        error = sqrt(sum(slope**2 / (0.01 * len(side.values)) for slope, side in zip(steep, pair, strict=True)))
    times = (error / wanted) ** 2
    return (
        {name: ceil(len(side.values) * (times - 1)) for name, side in zip("ab", pair, strict=True)}
        if times > 1
        else None
    )


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


_NAMES: Final = {"ttft": "P99 TTFT", "tpot": "P99 TPOT", "e2e": "P99 E2E"}


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
        by = f"{_NAMES[reason]} × {_times(ratios[reason]['p99'])}"
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
