"""Error-budget arithmetic on summed counts. `/api/v1/slos` and the generated Prometheus rules both use it."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cache
from importlib import resources
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field

from collector.slo.model import DurationNs, Objective, Slo
from collector.slo.severity import BurnSeverity
from tokentrail.shared.durations import format_duration


class _Rule(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    severity: BurnSeverity
    short: DurationNs
    long: DurationNs
    least_bad: Annotated[int, Field(ge=1)]

    def burn_rule(self, threshold: Decimal) -> BurnRule:
        return BurnRule(self.name, self.severity, self.short, self.long, threshold, self.least_bad)


class Window(_Rule):
    """One burn-rate rule of windows.yaml."""

    budget: Objective


class Outage(_Rule):
    """A rule of windows.yaml for a total outage."""

    factor: Annotated[Decimal, Field(gt=0)]
    least_share: Objective
    most_share: Objective


class Windows(BaseModel):
    """The content of windows.yaml."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rules: tuple[Window, ...]
    outages: tuple[Outage, ...]
    largest_share_of_maximum: Objective


@cache
def load_windows() -> Windows:
    """The burn-rate windows that ship with the collector."""
    text = resources.files(__package__).joinpath("windows.yaml").read_text(encoding="utf-8")
    return Windows.model_validate(yaml.safe_load(text))


class InfeasibleSlo(ValueError):
    """No burn-rate rule can watch this SLO. The message says why, and which window would do."""


@dataclass(frozen=True)
class BurnRule:
    """Fires when the budget burns faster than `threshold` over both windows (nanoseconds)."""

    name: str
    severity: BurnSeverity
    short_ns: int
    long_ns: int
    threshold: Decimal
    least_bad: int


def burn_rules(slo: Slo, windows: Windows) -> tuple[BurnRule, ...]:
    """The rules that watch an SLO, most urgent first: the rules for a total outage, then the burn-rate rules.

    A burn-rate rule with a factor below 1 would fire while the SLO is met, so it is left out. Raises
    InfeasibleSlo when none is left.
    """
    maximum = windows.largest_share_of_maximum / slo.budget
    rules = tuple(
        w.burn_rule(min(factor, maximum)) for w in windows.rules if (factor := w.budget * slo.window / w.long) >= 1
    )
    if not rules:
        needed = min(int(w.long / w.budget) for w in windows.rules)
        msg = (
            f"SLO {slo.name!r}: its window of {format_duration(slo.window)} is too short to be watched: every "
            f"burn-rate rule would fire while the promise is kept. Use {format_duration(needed)} or more"
        )
        raise InfeasibleSlo(msg)
    outages = (
        one.burn_rule(max(one.least_share, min(one.most_share, one.factor * slo.budget)) / slo.budget)
        for one in windows.outages
    )
    return (*outages, *rules)


@dataclass(frozen=True)
class Tally:
    """Requests that an SLO judges in a window, and the bad ones among them; sums of weights when they were sampled."""

    judged: int | float
    bad: int | float

    def burn(self, budget: Decimal) -> Fraction | None:
        """How many times as fast as allowed the budget burns: bad share ÷ budget. None without requests."""
        if not self.judged:
            return None
        bad, judged, share = (number.as_integer_ratio() for number in (self.bad, self.judged, budget))
        return Fraction(bad[0] * judged[1] * share[1], bad[1] * judged[0] * share[0])


def fires(rule: BurnRule, short: Fraction | None, long: Fraction | None, *, bad: int | float) -> bool:
    """Whether a rule fires at the burn rates of its two windows. It needs `least_bad` bad requests in the long one."""
    return bad >= rule.least_bad and all(rate is not None and rate > rule.threshold for rate in (short, long))


def budget_left(tally: Tally, budget: Decimal) -> float | None:
    """Share of the error budget that is left: 1 untouched, negative overspent. None without requests."""
    burned = tally.burn(budget)
    return None if burned is None else float(1 - burned)


def exhausted_in_s(left: float | None, burn: Fraction | None, window_ns: int) -> float | None:
    """Seconds until the error budget is gone if it burns on like this; 0 when it is gone.

    None when it is not known, and when nothing burns. A window of 30 d with half its budget left, at a burn rate of 6:
    30 d · 0.5 / 6 = 2.5 d.
    """
    if left is None or not burn:
        return 0.0 if left is not None and left <= 0 else None
    return max(0.0, float(window_ns * Fraction(left) / burn) / 1e9)
