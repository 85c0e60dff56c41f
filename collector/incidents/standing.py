"""How the promises stand, in one sentence: which state holds, and what it is about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from collector.ask.times import DAY_NS, HOUR_NS, SECOND_NS
from collector.ask.window import Window
from collector.count.evaluation import Counted
from collector.count.over_time import spent_ns
from collector.count.reader import Reader
from collector.incidents.incident import Incident
from collector.numbers.slos import BurnOut, Evaluation, SloOut
from collector.slo.conditions import load_conditions
from collector.slo.model import Slo
from collector.slo.severity import SEVERITIES
from tokentrail.shared.durations import duration_text
from tokentrail.shared.formatting import clock_text, duration, named, percent, significant
from tokentrail.shared.formatting import count as digits
from tokentrail.shared.moments import parse_moment

State = Literal["broken", "quiet", "not_judged", "spent", "danger", "kept"]
"""In this order: the first that holds is told.

`broken`: a page fires. `quiet`: no request ended in the window. `not_judged`: none of its requests has a verdict, and
no SLO has one in its own window. `spent`: an SLO's error budget is gone. `danger`: a ticket fires, or the budget ends
within a day at the rate of the last hour. `kept`: all else.
"""
_SOON_S: Final = DAY_NS / SECOND_NS


@dataclass(frozen=True)
class Told:
    """The first sentence and what it is about."""

    state: State
    sentence: str
    slo: SloOut | None = None
    tenant: str | None = None
    since_ns: int | None = None
    why: str | None = None


@dataclass(frozen=True)
class _Burning:
    """An SLO, or one of its tenants, of which a rule fires."""

    slo: SloOut
    tenant: str | None
    rule: BurnOut

    @property
    def order(self) -> tuple[int, bool, float]:
        """The worst first: by severity, SLOs before their tenants, by burn rate."""
        return SEVERITIES.index(self.rule.severity), self.tenant is not None, -(self.rule.long_burn or 0.0)

    @property
    def name(self) -> str:
        return self.slo.name if self.tenant is None else f"{self.slo.name} for {named(self.tenant) or 'no tenant'}"


def _burning(evaluated: Sequence[SloOut]) -> list[_Burning]:
    """The SLOs and tenants of which a rule fires, with the most urgent one; the worst first.

    Of an SLO with one tenant, that one: all requests are its, and so is the incident.
    """
    parts: list[tuple[SloOut, str | None, Evaluation]] = [(slo, None, slo) for slo in evaluated if len(slo.groups) != 1]
    parts += [(slo, group.tenant, group) for slo in evaluated for group in slo.groups]
    burning = [
        _Burning(slo, tenant, rule)
        for slo, tenant, evaluation in parts
        if (rule := next((rule for rule in evaluation.burn if rule.firing), None))
    ]
    return sorted(burning, key=lambda one: one.order)


def stands(
    reader: Reader,
    window: Window,
    evaluated: Sequence[SloOut],
    counted: Counted,
    incidents: Sequence[Incident],
    last_ns: int | None,
    *,
    is_filtered: bool,
) -> Told:
    """The first state that holds. `last_ns`: when the last request ended, where none did in the window.

    `is_filtered`: the question is about some requests.
    """
    burning = _burning(evaluated)
    if burning and burning[0].rule.severity == "page":
        return _broken(burning, incidents, window)
    if not counted.requests.total:
        return _quiet(counted, last_ns, window, is_filtered=is_filtered)
    if all(slo.attainment is None for slo in evaluated):
        return _not_judged(evaluated, counted)
    judged = [slo for slo in evaluated if slo.budget_left is not None]
    worst = min(judged, key=lambda slo: slo.budget_left or 0.0)
    if (worst.budget_left or 0.0) <= 0:
        return _spent(worst, spent_ns(reader, window, slo_of(reader, worst)), window)
    if burning:
        return _in_danger(burning[0].slo, burning[0], incidents)
    soon = [slo for slo in judged if _ends_soon(slo)]
    if soon:
        return _in_danger(min(soon, key=lambda slo: slo.exhausted_in_s or 0.0), None, incidents)
    return _kept(evaluated, judged, worst, incidents)


def _broken(burning: Sequence[_Burning], incidents: Sequence[Incident], window: Window) -> Told:
    worst = burning[0]
    since_ns = _since_ns(incidents, worst)
    since = "" if since_ns is None else f" Since {clock_text(since_ns, window.end_ns)}."
    rule, objective = worst.rule, worst.slo.objective
    others = sorted({one.slo.name for one in burning if one.rule.severity == "page"} - {worst.slo.name})
    more = f" Not kept either: {', '.join(others)}." if others else ""
    return Told(
        "broken",
        f"{worst.name} is not kept: {percent(_attainment(rule, worst.slo))} good in the last {_last(rule.long_s)}, "
        f"{percent(objective)} promised.{since}{more}",
        worst.slo,
        worst.tenant,
        since_ns,
    )


def _quiet(counted: Counted, last_ns: int | None, window: Window, *, is_filtered: bool) -> Told:
    before = "None that fits the filters ended before." if is_filtered else "None has ended yet."
    last = before if last_ns is None else f"The last one: {clock_text(last_ns, window.end_ns)}."
    n = counted.requests.in_flight
    running = f" In flight: {digits(n)}." if n else ""
    fits = " that fits the filters" if is_filtered and last_ns is not None else ""
    return Told("quiet", f"No request{fits} ended in this range. {last}{running}", since_ns=last_ns)


def _not_judged(evaluated: Sequence[SloOut], counted: Counted) -> Told:
    counts = counted.requests
    if not evaluated:
        reason = "the collector was started without an SLO file"
    elif counts.unselected == counts.total:
        reason = "no SLO selects them"
    else:
        reason = "their source does not report what the thresholds need"
    n = f"{digits(counts.total)} request{'' if counts.total == 1 else 's'}"
    warnings = " ".join(slo.warning for slo in evaluated if slo.warning)
    return Told("not_judged", f"{n}, none judged: {reason}.", why=warnings or None)


def _spent(worst: SloOut, since_ns: int | None, window: Window) -> Told:
    now = _last_hour(worst)
    over = f"not kept over {_length(worst.window_s)}: its budget is spent"
    over += "" if since_ns is None else f" since {clock_text(since_ns, window.end_ns)}"
    if now is None:
        told = f"{over}, and no request of the last hour is judged"
    elif now >= worst.objective:
        told = f"kept now ({percent(now)} good in the last hour), and {over}"
    else:
        told = f"{over}, and {percent(now)} were good in the last hour, {percent(worst.objective)} promised"
    return Told("spent", f"{worst.name} is {told}.", worst, since_ns=since_ns)


def _in_danger(slo: SloOut, burning: _Burning | None, incidents: Sequence[Incident]) -> Told:
    name, tenant, since_ns = slo.name, None, None
    rate = ""
    if burning is not None:
        name, tenant, since_ns = burning.name, burning.tenant, _since_ns(incidents, burning)
        times = significant(burning.rule.long_burn or 0.0)
        rate = f" Over {_length(burning.rule.long_s)} it burned {times} times as fast as allowed."
    ends = f"ends in {duration(slo.exhausted_in_s)} at this rate" if slo.exhausted_in_s else "shrinks too fast"
    return Told("danger", f"{name} is kept, and its budget {ends}.{rate}", slo, tenant, since_ns)


def _kept(evaluated: Sequence[SloOut], judged: Sequence[SloOut], worst: SloOut, incidents: Sequence[Incident]) -> Told:
    firing = sum(one.firing for one in incidents)
    n = len(judged)
    if n == len(evaluated):
        kept = "The SLO is kept." if n == 1 else f"All {n} SLOs are kept."
    else:
        missing = ", ".join(slo.name for slo in evaluated if slo.budget_left is None)
        kept = f"{n} of {len(evaluated)} SLOs {'is' if n == 1 else 'are'} kept; of {missing} nothing is judged."
    fires = "Nothing fires." if not firing else f"{firing} other incident{' fires' if firing == 1 else 's fire'}."
    return Told("kept", f"{kept} Budget left: {worst.name} {percent(worst.budget_left)}. {fires}")


def _ends_soon(slo: SloOut) -> bool:
    """The budget ends within a day at the rate of the last hour, and this is not one bad request of a few."""
    left = slo.exhausted_in_s
    return left is not None and left <= _SOON_S and slo.requests.tally.bad >= load_conditions()["budget_forecast"].least


def _attainment(rule: BurnOut, slo: SloOut) -> float | None:
    """Over the rule's long window: the burn rate is the bad share ÷ the budget."""
    return None if rule.long_burn is None else 1 - rule.long_burn * (1 - slo.objective)


def _last_hour(slo: SloOut) -> float | None:
    return next((_attainment(rule, slo) for rule in slo.burn if rule.long_s * SECOND_NS == HOUR_NS), None)


def slo_of(reader: Reader, evaluated: SloOut) -> Slo:
    """The SLO whose numbers these are."""
    return next(slo for slo in reader.slos if slo.name == evaluated.name)


def _length(seconds: float) -> str:
    return duration_text(round(seconds * SECOND_NS))


def _last(seconds: float) -> str:
    """As it stands behind `the last`: `5 min`, `hour`."""
    return {"1 h": "hour", "1 d": "day"}.get(length := _length(seconds), length)


def burn_of(incidents: Sequence[Incident], slo: SloOut | None, tenant: str | None) -> Incident | None:
    """The incident of an SLO that fires; that of all tenants where the tenant has none of its own."""
    burns = [one for one in incidents if slo is not None and one.slo == slo.name and one.firing]
    of_all = next((one for one in burns if one.tenant is None), None)
    return next((one for one in burns if one.tenant == tenant), of_all)


def _since_ns(incidents: Sequence[Incident], burning: _Burning) -> int | None:
    burn = burn_of(incidents, burning.slo, burning.tenant)
    return None if burn is None else parse_moment(burn.start).ns
