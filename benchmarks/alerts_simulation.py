"""False pages of the burn-rate rules, simulated: requests arrive at random, and the share of the budget is bad.

Each SLO is kept, so each page is false. The rules are those of collector/slo/windows.yaml, evaluated every 30 s over 30
days. The peers are the same windows without a guard on few requests (as Sloth generates them) and with a guard on 10
requests of any kind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from benchmarks.report import JsonPath, Quick, publish
from collector.slo.burn import BurnRule, burn_rules, load_windows
from collector.slo.model import Slo

STEP_S = 30
DAYS = 30
OBJECTIVES = ("0.9", "0.95", "0.97", "0.98", "0.99", "0.995", "0.998", "0.999")
PER_MINUTE = (2, 3, 4, 6, 10, 30, 100, 600)
GUARDS = ("least_bad", "ten_requests", "no_guard")
Counts = NDArray[np.int64]


def main(
    quick: Quick = False,
    json: JsonPath = None,
    months: Annotated[int, typer.Option(help="Months of 30 days for each objective and rate.", min=1)] = 100,
) -> None:
    """Simulate and print. 100 months for each of 64 pairs take about 2 minutes of one core; --quick is 4 months."""
    months = 4 if quick else months
    random = np.random.default_rng(1)
    worst: dict[str, dict[str, Any]] = {}
    for objective in OBJECTIVES:
        slo = Slo.model_validate(
            {"name": "s", "objective": objective, "window": f"{DAYS}d", "thresholds": {"e2e": "1s"}}
        )
        rules = burn_rules(slo, load_windows())
        for rate in PER_MINUTE:
            fired: Counter[str] = Counter()
            for _ in range(months):
                fired.update(false_alarms(rules, slo.budget, month(random, slo.budget, rate)))
            for key, count in fired.items():
                if key not in worst or count / months > worst[key]["per_30_days"]:
                    worst[key] = {"per_30_days": count / months, "objective": objective, "per_minute": rate}
    numbers = {"months": months, "pairs": len(OBJECTIVES) * len(PER_MINUTE), **dict(sorted(worst.items()))}
    publish("alerts_simulation", numbers, packages=("numpy",), quick=quick, path=json)


def month(random: np.random.Generator, budget: Decimal, per_minute: float) -> tuple[Counts, Counts]:
    """Running sums of all requests and of the bad ones, at the end of each step of 30 days."""
    steps, expected, bad_share = DAYS * 86_400 // STEP_S, per_minute * STEP_S / 60, float(budget)
    bad = np.cumsum(random.poisson(expected * bad_share, steps))
    return bad + np.cumsum(random.poisson(expected * (1 - bad_share), steps)), bad


def false_alarms(rules: tuple[BurnRule, ...], budget: Decimal, sums: tuple[Counts, Counts]) -> Mapping[str, int]:
    """How often each rule, and any that pages, begins to fire, for each guard."""
    fired: dict[str, int] = {}
    paging = {guard: np.zeros(len(sums[0]), bool) for guard in GUARDS}
    for rule in rules:
        for guard, on in _fires(rule, budget, sums).items():
            fired[f"{guard} {rule.name}"] = _begins(on)
            if rule.severity == "page":
                paging[guard] |= on
    return fired | {f"{guard} any page": _begins(on) for guard, on in paging.items()}


def _fires(rule: BurnRule, budget: Decimal, sums: tuple[Counts, Counts]) -> dict[str, NDArray[np.bool_]]:
    """Whether the rule fires at each step, for each guard: `collector.slo.burn.fires`, for all steps at once."""
    share = float(rule.threshold * budget)
    short, long = (_within(sums, ns) for ns in (rule.short_ns, rule.long_ns))
    burns = (short[1] > share * short[0]) & (long[1] > share * long[0])
    return {
        "least_bad": burns & (long[1] >= rule.least_bad),
        "ten_requests": burns & (long[0] >= 10),
        "no_guard": burns,
    }


def _within(sums: tuple[Counts, Counts], window_ns: int) -> tuple[Counts, Counts]:
    """All and bad requests of the window that ends at each step."""
    steps = window_ns // (STEP_S * 10**9)
    all_, bad = (np.concatenate((c[:steps], c[steps:] - c[:-steps])) for c in sums)
    return all_, bad


def _begins(on: NDArray[np.bool_]) -> int:
    return int(on[0]) + int(np.count_nonzero(on[1:] & ~on[:-1]))


if __name__ == "__main__":
    typer.run(main)
