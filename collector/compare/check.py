"""A gate for releases: is it good, is it worse, or is that not decided yet? It may be asked as often as one likes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from pydantic import Field

from collector.ask.slices import slices
from collector.ask.times import SECOND_NS
from collector.ask.window import Window
from collector.base.answer import Answer
from collector.compare.chance import Floats
from collector.compare.compare import listed, told_strata, told_undetermined
from collector.compare.evidence import (
    ALPHA,
    Judged,
    Share,
    Verdict,
    against_latency,
    against_objective,
    against_share,
    drifts,
    larger,
)
from collector.compare.sides import LATENCIES, Rows, alike_samples, bad_samples, read_rows
from collector.compare.strata import NO_STRATA, Strata
from collector.compare.wandering import BLOCKS
from collector.count.answers import WindowOut
from collector.count.evaluation import Counted, count
from collector.count.population import read_ended
from collector.count.reader import Reader
from collector.slo.cells import Cells
from collector.slo.counts import Counts
from collector.slo.model import Slo
from tokentrail.shared.formatting import THRESHOLDS, duration, percent, significant
from tokentrail.shared.formatting import count as digits

VALUES: Final[Mapping[Verdict, int]] = {"good": 1, "not decided": 0, "worse": -1}


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
class BadShare:
    """The bad requests among the judged ones, and how they came together since the first of them."""

    judged: Share
    least: Share
    """If all undetermined requests are good."""
    most: Share
    """If they are bad."""


def bad_share(reader: Reader, counted: Counted, slo: Slo, first_ns: int) -> BadShare:
    """The bad requests of one side."""
    tally, errors, unknown = counted.requests.tally, counted.errors, float(counted.requests.undetermined)
    if not tally.judged:
        return BadShare(*[Share(0.0, 0.0)] * 3)
    bad, n = float(tally.bad), float(tally.judged)
    window = replace(counted.window, start_ns=min(max(counted.window.start_ns, first_ns), counted.window.end_ns - 1))
    of_bad, of_judged, of_unknown = _by_block(reader, slo, window)
    more = errors.attainment**2 if errors and errors.attainment and 0 < bad < n else 0.0

    def share(hits: float, n: float, inside: Floats, all_: Floats) -> Share:
        moved = (inside - all_ * inside.sum() / max(all_.sum(), 1.0)) / n
        return Share(hits, n, moved, window.seconds, all_, more)

    return BadShare(
        judged=share(bad, n, of_bad, of_judged),
        least=share(bad, n + unknown, of_bad, of_judged + of_unknown),
        most=share(bad + unknown, n + unknown, of_bad + of_unknown, of_judged + of_unknown),
    )


def _by_block(reader: Reader, slo: Slo, window: Window) -> Floats:
    """The bad, the judged and the undetermined requests that ended in each block of a window, the latest first."""
    edges = np.linspace(window.end_ns, window.start_ns, BLOCKS + 1).astype(np.int64).tolist()
    ended = read_ended(reader.queries, window.filter, Cells([slo]), slices(edges))
    outcomes = ended.judged.of_all_slos()
    flags = {"bad": outcomes.bad, "judged": outcomes.bad | outcomes.good, "undetermined": outcomes.undetermined}
    counts = np.zeros((len(flags), BLOCKS))
    for band, of_band in ended.by_band(flags).items():
        counts[:, band - 1] = [of_band[name] for name in flags]
    return counts


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
    bad: BadShare
    rows: Rows


def read(
    reader: Reader,
    name: str,
    slo: Slo,
    window: Window,
    vantage: Sequence[str],
    strata: Strata | None,
    first_ns: int | None = None,
) -> Checked:
    """Read one side. `strata`: by what its requests are compared with another side's; None: with none. `first_ns`: when
    its first request began.
    """
    counted = count(reader, window, vantage, [slo])
    bad = bad_share(reader, counted, slo, first_ns or 0)
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
    ran_s: float,
    strata: Strata = NO_STRATA,
    cut: str = "",
) -> Check:
    """The verdict on `checked`, against the objective or another side.

    Good needs both sides, and to be seen for `least_ns`. `ran_s`: the time in which requests ended, without pauses.
    """
    budget, seen_s = 1 - objective, min(_seen_s(checked), ran_s)
    empty = next((one.name for one in (checked, against) if one and not one.counted.requests.tally.judged), None)
    young = seen_s * SECOND_NS < least_ns
    drifting = False
    if against is None:
        of = checked.bad
        numbers = [against_objective(of.judged, budget, relevant, young=young, least=of.least, most=of.most)]
    else:
        pairs = {name: alike_samples(against.rows, checked.rows, name) for name in LATENCIES}
        known = {name: pair for name, pair in pairs.items() if pair}
        n, drifting = len(known) + 1, drifts(known.values())
        bad = bad_samples(against.rows, checked.rows)
        numbers = [against_share(bad, checked.bad.most, budget, relevant, n, young=young, drifts=drifting)]
        word = f"P{significant(100 * quantile, 4).rstrip('0').rstrip('.')}"
        numbers += [
            against_latency(f"{word} {THRESHOLDS[name]}", pair, quantile, relevant, n, young=young, drifts=drifting)
            for name, pair in known.items()
        ]
    verdict = overall(numbers)
    slow = drifting or checked.bad.judged.wanders_slowly(larger(budget, relevant))
    reason = _reason(verdict, numbers, checked, against, relevant)
    if verdict == "not decided" and young and not empty:
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
        empty=empty,
        seen_s=seen_s,
        slow=slow,
        warnings=[
            *([cut] if cut else []),
            *_not_compared(checked, against),
            *told_undetermined({side.name: side.counted.requests for side in (checked, against) if side}),
            *told_strata(strata, ()),
        ],
        numbers=numbers,
    )


def _not_compared(checked: Checked, against: Checked | None) -> Iterator[str]:
    """The latencies that one side alone tells."""
    if against is None or not (checked.counted.requests.ok and against.counted.requests.ok):
        return
    for name in LATENCIES:
        told = [bool(np.isfinite(side.rows[name]).any()) for side in (checked, against)]
        if any(told) and not all(told):
            silent = against if told[0] else checked
            yield f"{silent.name} does not tell its {THRESHOLDS[name]}, so it is not compared"


def _seen_s(checked: Checked) -> float:
    """Seconds from the first block with a request that was judged to the last one."""
    bad = checked.bad.judged
    if not bad.n or bad.judged is None:
        return 0.0
    blocks = np.flatnonzero(bad.judged)
    return float(np.ptp(blocks) + 1) * bad.seconds / BLOCKS if blocks.size else 0.0


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
