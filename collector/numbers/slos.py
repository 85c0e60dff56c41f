"""Attainment, error budget and burn rates of SLOs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from collector.ask.times import DAY_NS, HOUR_NS, SECOND_NS
from collector.ask.window import Window
from collector.base.answer import Answer
from collector.count.answers import ThresholdsOut, WindowOut
from collector.count.evaluation import (
    Burn,
    burns,
    count_burns,
    count_by_window,
    open_requests,
)
from collector.count.reader import Reader
from collector.count.summing import SloCounts, Windows
from collector.slo.burn import BurnRule, budget_left, burn_rules, exhausted_in_s
from collector.slo.counts import Counts, Number
from collector.slo.estimate import Errors
from collector.slo.model import Slo
from collector.slo.severity import SEVERITIES, BurnSeverity


class BurnOut(Answer):
    """One multi-window burn-rate rule."""

    name: str
    severity: BurnSeverity
    short_s: float
    long_s: float
    threshold: float
    """Clamped to what the objective allows."""
    short_burn: float | None
    long_burn: float | None
    firing: bool
    """Both burn rates are over the threshold, and enough requests were bad."""


class Evaluation(Answer):
    """Numbers over the SLO's own window, and its burn rates at the window's end, by the time of arrival."""

    requests: Counts
    attainment: float | None
    estimated: bool
    errors: Errors | None
    budget_left: float | None
    """Share of the error budget that is left: 1 is untouched, a negative share is overspent."""
    exhausted_in_s: float | None
    """Time until the error budget is gone at the burn rate of the last hour: 0 when it is gone, null while it does not
    shrink."""
    burn: list[BurnOut]
    firing: BurnSeverity | None
    """The highest severity that fires, of an SLO also that of its groups."""


class Group(Evaluation):
    """The numbers of one tenant, for an SLO with `group_by: [tenant]`."""

    tenant: str


class SloOut(Evaluation):
    """One SLO, with its numbers."""

    name: str
    description: str
    owner: str
    team: str
    hash: str
    """Of the definition, as in `tokentrail_slo_info`."""
    objective: float
    window_s: float
    select: dict[str, list[str]]
    thresholds: ThresholdsOut
    selected_last_day: Number
    """How many of `ended_last_day` requests it selects, after the filters of the question."""
    ended_last_day: Number
    warning: str | None
    """Why the SLO's numbers say little, and what to do."""
    groups: list[Group]
    """The tenants with the most requests, as many as the SLO's `most_groups`."""
    groups_total: int


class OneSlo(SloOut):
    """`/slos/{name}`."""

    window: WindowOut


class Slos(Answer):
    """`/slos`."""

    window: WindowOut
    slos: list[SloOut]
    file_problem: str | None
    """Why the newest SLO file is not in use: these are the SLOs of the one before. Null while it is."""


def slos(reader: Reader, asked: Window) -> Slos:
    """Every SLO that the caller may see, over its own window."""
    told = WindowOut.of(asked, reader.complete_ns)
    return Slos(window=told, slos=evaluate(reader, reader.slos, asked), file_problem=reader.slo_file_problem or None)


def one_slo(reader: Reader, slo: Slo, asked: Window) -> OneSlo:
    """One SLO, over its own window."""
    told = WindowOut.of(asked, reader.complete_ns)
    (evaluated,) = evaluate(reader, [slo], asked)
    return OneSlo(window=told, **vars(evaluated))


def evaluate(reader: Reader, slos: Sequence[Slo], asked: Window) -> list[SloOut]:
    """The SLOs' numbers at the end of the window that was asked about."""
    if not slos:
        return []
    rules = {slo.name: burn_rules(slo, reader.windows) for slo in slos}
    longest = max(slo.window for slo in slos)
    in_flight = open_requests(reader, replace(asked, start_ns=max(0, asked.end_ns - longest)))
    lengths = {slo.name: {slo.window, DAY_NS} for slo in slos}
    counted = count_by_window(reader, slos, asked, lengths, in_flight=in_flight)
    tenants = {name: [*counts.groups] for name, counts in counted.slos.items()}
    arrived = count_burns(reader, slos, asked, in_flight=in_flight, tenants=tenants)
    return [
        _slo_out(slo, rules[slo.name], counted.slos[slo.name], arrived[slo.name], counted.ended[DAY_NS]) for slo in slos
    ]


def _slo_out(
    slo: Slo, rules: Sequence[BurnRule], counted: SloCounts, arrived: SloCounts, ended_last_day: Number
) -> SloOut:
    last_day = counted.windows[DAY_NS][0]
    numbers = _numbers(slo, rules, counted.windows, arrived.windows)
    groups = [
        Group(tenant=name, **_numbers(slo, rules, windows, arrived.groups[name]))
        for name, windows in counted.groups.items()
    ]
    return SloOut(
        **numbers | {"firing": _highest([numbers["firing"], *(group.firing for group in groups)])},
        name=slo.name,
        description=slo.description,
        owner=slo.owner,
        team=slo.team,
        hash=slo.hash,
        objective=float(slo.objective),
        window_s=slo.window / SECOND_NS,
        select={key: list(values) for key, values in slo.select.items()},
        thresholds=ThresholdsOut.of(slo.thresholds),
        selected_last_day=last_day.total,
        ended_last_day=ended_last_day,
        warning=_warning(slo, last_day, ended_last_day),
        groups=groups,
        groups_total=counted.groups_total,
    )


def _numbers(slo: Slo, rules: Sequence[BurnRule], ended: Windows, arrived: Windows) -> dict[str, Any]:
    """The fields of `Evaluation`."""
    requests, errors = ended[slo.window]
    burn = burns(slo, rules, {length: counts for length, (counts, _) in arrived.items()})
    left = budget_left(requests.tally, slo.budget)
    return {
        "requests": requests,
        "attainment": requests.attainment,
        "estimated": errors is not None,
        "errors": errors,
        "budget_left": left,
        "exhausted_in_s": exhausted_in_s(left, arrived[HOUR_NS][0].tally.burn(slo.budget), slo.window),
        "burn": [_burn_out(b) for b in burn],
        "firing": _highest([b.rule.severity for b in burn if b.firing]),
    }


def _highest(severities: Sequence[BurnSeverity | None]) -> BurnSeverity | None:
    return min((severity for severity in severities if severity), key=SEVERITIES.index, default=None)


def _warning(slo: Slo, last_day: Counts, ended: Number) -> str | None:
    if ended and not (last_day.total or last_day.in_flight or last_day.lost):
        listed = ", ".join(f"{key} in ({', '.join(values)})" for key, values in slo.select.items())
        return (
            f"The SLO selected 0 of {ended:g} requests of the last day: none has {listed}. Give the requests these "
            "labels, or change `select` or `labels` in the SLO file."
        )
    if last_day.undetermined and not last_day.tally.judged:
        return (
            f"None of {last_day.undetermined:g} requests of the last day can be judged: their source does not report "
            f"{' or '.join(slo.thresholds.given())}. They are neither good nor bad."
        )
    return None


def _burn_out(burn: Burn) -> BurnOut:
    return BurnOut(
        name=burn.rule.name,
        severity=burn.rule.severity,
        short_s=burn.rule.short_ns / SECOND_NS,
        long_s=burn.rule.long_ns / SECOND_NS,
        threshold=float(burn.rule.threshold),
        short_burn=burn.short,
        long_burn=burn.long,
        firing=burn.firing,
    )
