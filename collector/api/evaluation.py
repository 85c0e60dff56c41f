"""Counts of requests in windows, and the numbers that follow from them. Several endpoints use them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

import numpy as np

from collector.api.context import Context
from collector.api.parameters import Window
from collector.api.problems import not_found
from collector.api.sums import Summand, Sums, add_all, slices, sums
from collector.in_flight import Bools, InFlight, read_in_flight
from collector.slo.burn import BurnRule, fires
from collector.slo.counts import Counts
from collector.slo.estimate import Errors
from collector.slo.judge import CANCELLED, FAILED, OK, Verdict, selected, verdict
from collector.slo.model import Slo
from collector.sql.fragment import TRUE, Fragment, all_of
from collector.sql.queries import part

_NOTHING: Final[Mapping[str, Summand]] = MappingProxyType({})
_WITH_VARIANCE: Final = ("total", "good", "cancelled", "undetermined")


@dataclass(frozen=True)
class Counted:
    """Requests of a window, the other sums that were asked for, and the requests in flight that were looked at."""

    requests: Counts
    sums: Sums
    errors: Errors | None
    """None: every request stands for itself, so nothing is estimated."""
    in_flight: InFlight


def count(
    ctx: Context,
    window: Window,
    verdict: Verdict,
    bad: Callable[[InFlight], Bools],
    others: Mapping[str, Summand] = _NOTHING,
) -> Counted:
    """Requests of a window by how they ended. `bad` tells which requests in flight are bad already."""
    found = sums(
        ctx.queries,
        window.filter,
        [*slices([window.end_ns, window.start_ns])],
        {**_by_outcome(verdict), **others},
    )
    in_flight = open_requests(ctx, window)
    not_ended = {
        "in_flight": _number(~in_flight.is_lost),
        "in_flight_violations": _number(bad(in_flight)),
        "lost": _number(in_flight.is_lost),
    }
    total = found.total
    requests, errors = _counts(total, not_ended, sampled=found.sampled)
    return Counted(requests, total, errors, in_flight)


def _number(requests: Bools) -> int:
    return int(np.count_nonzero(requests))


def open_requests(ctx: Context, window: Window) -> InFlight:
    """The requests of a window that had not ended at its end."""
    return read_in_flight(ctx.queries, window.filter, **window.bounds, lost_after_ns=ctx.lost_after_ns)


def _by_outcome(verdict: Verdict, chosen: Fragment = TRUE) -> dict[str, Summand]:
    """The counts of requests that ended, by how they ended."""
    outcomes = {
        "total": TRUE,
        "ok": OK,
        "good": verdict.good,
        "undetermined": verdict.undetermined,
        "failed": FAILED,
        "cancelled": CANCELLED,
    }
    return {
        name: Summand(all_of(*(f for f in (chosen, outcome) if f != TRUE)), with_variance=name in _WITH_VARIANCE)
        for name, outcome in outcomes.items()
    }


def _counts(ended: Sums, not_ended: Mapping[str, int], *, sampled: bool) -> tuple[Counts, Errors | None]:
    counts = Counts(**{name: not_ended.get(name, ended.get(name, 0)) for name in Counts.model_fields})
    if not sampled:
        return counts, None
    variance = {name: ended.get(f"{name}_variance", 0.0) for name in _WITH_VARIANCE}
    return counts, Errors.of(
        counts,
        total_variance=variance["total"],
        good_variance=variance["good"],
        judged_variance=variance["total"] - variance["cancelled"] - variance["undetermined"],
    )


def find_slo(slos: Sequence[Slo], name: str) -> Slo:
    """The SLO of that name; raises Problem (404) that lists the names there are."""
    for slo in slos:
        if slo.name == name:
            return slo
    known = ", ".join(slo.name for slo in slos) or "none: the collector was started without an SLO file"
    raise not_found(f"no SLO is named {name!r}; there are: {known}")


def burn_windows(rules: Sequence[BurnRule]) -> set[int]:
    """The lengths of the windows that burn-rate rules look at, in nanoseconds."""
    return {ns for rule in rules for ns in (rule.short_ns, rule.long_ns)}


def count_by_window(
    ctx: Context, slos: Sequence[Slo], asked: Window, lengths: Mapping[str, set[int]]
) -> dict[str, dict[int, tuple[Counts, Errors | None]]]:
    """Each SLO's counts by window length in nanoseconds; `lengths` has those of each SLO, by its name.

    All windows end when the asked one does; the rows of all SLOs are read once.
    """
    ends = sorted(set().union(*lengths.values()))
    moments = [asked.end_ns, *(max(0, asked.end_ns - length) for length in ends)]
    summands = {
        f"{i} {name}": summand
        for i, slo in enumerate(slos)
        for name, summand in _by_outcome(verdict(slo.thresholds, f"slo{i}"), selected(slo.select, f"slo{i}")).items()
    }
    found = sums(ctx.queries, asked.filter, [*slices(moments)], summands)
    longest = replace(asked, start_ns=moments[-1])
    in_flight = open_requests(ctx, longest)
    return {
        slo.name: {
            length: _counts(
                add_all(
                    {key.removeprefix(f"{i} "): n for key, n in row.items() if key.startswith(f"{i} ")}
                    for band, row in found.by_band.items()
                    if ends[band - 1] <= length
                ),
                _not_ended(in_flight, slo, asked.end_ns - length),
                sampled=found.sampled,
            )
            for length in lengths[slo.name]
        }
        for i, slo in enumerate(slos)
    }


def _not_ended(in_flight: InFlight, slo: Slo, since_ns: int) -> dict[str, int]:
    """A lost request belongs to the window in which it was given up, a request in flight to every window."""
    chosen = in_flight.selected(slo)
    return {
        "in_flight": _number(chosen & ~in_flight.is_lost),
        "in_flight_violations": _number(chosen & in_flight.bad(slo.thresholds)),
        "lost": _number(chosen & in_flight.is_lost & (in_flight.lost_at_ns >= since_ns)),
    }


@dataclass(frozen=True)
class Burn:
    """How many times too fast an SLO's budget burns over the two windows of a rule; None without requests."""

    rule: BurnRule
    short: float | None
    long: float | None
    firing: bool


def burns(slo: Slo, rules: Sequence[BurnRule], by_window: Mapping[int, Counts]) -> list[Burn]:
    """The burn of every rule, in the order of the rules."""
    return [_burn(slo, rule, by_window) for rule in rules]


def _burn(slo: Slo, rule: BurnRule, by_window: Mapping[int, Counts]) -> Burn:
    tallies = by_window[rule.short_ns].tally, by_window[rule.long_ns].tally
    short, long = (None if (rate := tally.burn(slo.budget)) is None else float(rate) for tally in tallies)
    return Burn(rule, short, long, fires(rule, slo.budget, *tallies))


def process_filter(window: Window) -> Fragment:
    """The filter for rows that belong to an engine process and not to a request: the process has matching requests."""
    return TRUE if window.filter == TRUE else part("serves_requests", {"filter": window.filter})
