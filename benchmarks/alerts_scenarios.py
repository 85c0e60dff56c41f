"""Faults that `benchmarks.alerts` plays: pages of `/metrics` over time, and the alerts that must come of them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from collector.slo.model import Slo

OBJECTIVES = {"ninety": "0.9", "ninetyfive": "0.95", "ninetynine": "0.99", "threenines": "0.999"}
SLOS = tuple(
    Slo.model_validate({"name": name, "objective": objective, "window": "30d", "thresholds": {"e2e": "60s"}})
    for name, objective in OBJECTIVES.items()
)
OUTAGE = frozenset(f"TokentrailSloBurn page {name}" for name in OBJECTIVES)
PROCESS = '{service_name="s",service_instance_id="i"}'

Page = Callable[[float], str]
"""A page of /metrics by the seconds since the fault, negative before it. An empty one is a scrape that fails."""


@dataclass(frozen=True)
class Scenario:
    """A cluster: the page of each of its targets, and the alerts that must reach the webhook.

    An alert that is neither expected nor named in `may_follow` must not come.
    """

    name: str
    pages: Mapping[str, Page]
    expected: frozenset[str] = frozenset()
    may_follow: frozenset[str] = frozenset()
    """Beginnings of names."""
    needs_s: float = 0.0
    """How long the fault must last for the expected alerts to come."""
    begins_s: float = 0.0
    """When its fault begins: slow ones begin before the others."""

    def fits(self, well_s: float, fault_s: float) -> bool:
        """Whether a run of this length shows it."""
        return -self.begins_s <= well_s and self.begins_s + self.needs_s <= fault_s


class Requests:
    """A collector's page: counters of each SLO, for `per_s` requests a second of which `bad(t, budget)` are bad."""

    def __init__(
        self, bad: Callable[[float, float], float], *, per_s: float = 1.0, reset_at: float | None = None
    ) -> None:
        self.bad, self.per_s, self.reset_at = bad, per_s, reset_at
        self._last: float | None = None
        self._all, self._good = 0.0, dict.fromkeys(OBJECTIVES, 0.0)

    def __call__(self, t: float) -> str:
        """The page at this time; times must not go back."""
        last, self._last = t if self._last is None else self._last, t
        if self.reset_at is not None and last < self.reset_at <= t:
            self._all, self._good = 0.0, dict.fromkeys(OBJECTIVES, 0.0)
        new = (t - last) * self.per_s
        self._all += new
        lines = ["tokentrail_collector_ready 1", f"tokentrail_collector_spans_received_total {self._all:.0f}"]
        for slo in SLOS:
            self._good[slo.name] += new * (1 - self.bad(t, float(slo.budget)))
            lines.append(f'tokentrail_slo_info{{slo="{slo.name}",hash="{slo.hash}"}} 1')
            lines.append(f'tokentrail_slo_requests_total{{slo="{slo.name}"}} {int(self._all)}')
            lines.append(f'tokentrail_slo_good_requests_total{{slo="{slo.name}"}} {int(self._good[slo.name])}')
        return "\n".join(lines) + "\n"


def vllm(
    *,
    tokens: Callable[[float], float] = lambda t: 40 * t,
    waiting: Callable[[float], float] = lambda t: 0,
    preemptions: Callable[[float], float] = lambda t: 0,
) -> Page:
    """A page of a vLLM that runs four requests; counters began a thousand seconds before the fault."""

    def page(t: float) -> str:
        samples = {
            "num_requests_running": 4,
            "num_requests_waiting": waiting(t),
            "num_preemptions_total": preemptions(t),
            "kv_cache_usage_perc": 0.9,
            "request_success_total": (t + 1000) / 2,
            "prompt_tokens_total": 9 * (t + 1000),
            "generation_tokens_total": tokens(t) + 40_000,
        }
        return "".join(
            f'vllm:{name}{{model_name="m"}} {int(value) if value > 1 else value}\n' for name, value in samples.items()
        )

    return page


def during(first: Page, then: Page, *, from_s: float = 0.0, to_s: float = float("inf")) -> Page:
    """`first`, but `then` from one time to another."""
    return lambda t: then(t) if from_s <= t < to_s else first(t)


def both(*pages: Page) -> Page:
    """Pages one after the other."""
    return lambda t: "".join(page(t) for page in pages)


def gauge(name: str, value: Callable[[float], float]) -> Page:
    """One gauge of an engine process."""
    return lambda t: f"{name}{PROCESS} {value(t):.3f}\n"


def nothing(_: float) -> str:
    """A scrape that fails."""
    return ""


def never_bad(_: float, __: float) -> float:
    """Every request is good."""
    return 0.0


def all_bad(t: float, _: float) -> float:
    """From the fault on, every request is bad."""
    return float(t >= 0)


def scenarios() -> list[Scenario]:
    """Every scenario but the real collector's."""
    chance = random.Random(1)

    def at_the_budget(_: float, budget: float) -> float:
        return float(chance.random() < budget)

    burns, tickets = frozenset({"TokentrailSloBurn"}), frozenset({"TokentrailSloBurn ticket"})
    lost = gauge("tokentrail_requests_last_lost_timestamp_seconds", lambda t: time.time() - 1)
    cold = both(
        gauge("tokentrail_cold_start_last_duration_seconds", lambda t: 8.0),
        gauge("tokentrail_cold_start_last_end_timestamp_seconds", lambda t: time.time() - t),
    )
    hung = gauge("tokentrail_requests_stuck", lambda t: 3.0 * (t >= 0))
    outage_and_lost = Requests(all_bad)
    return [
        Scenario("total outage, 60 requests a minute", {"c": Requests(all_bad)}, OUTAGE, burns),
        Scenario("total outage, 10 requests a minute", {"c": Requests(all_bad, per_s=1 / 6)}, OUTAGE, burns),
        Scenario(
            "total outage, two collectors",
            {"a": Requests(all_bad, per_s=0.5), "b": Requests(all_bad, per_s=0.5)}, OUTAGE, burns,
        ),
        Scenario(
            "total outage, the engine lost",
            {"c": during(outage_and_lost, both(outage_and_lost, lost))}, OUTAGE | {"TokentrailEngineLost"}, burns,
        ),
        Scenario(
            "engine hung, by its trail",
            {"c": both(Requests(never_bad), hung)},
            frozenset({"TokentrailEngineHung"}),
        ),
        Scenario(
            "engine hung, by its trail, two collectors of one store",
            {name: both(Requests(never_bad, per_s=0.5), hung) for name in ("a", "b")},
            frozenset({"TokentrailEngineHung"}),
        ),
        Scenario(
            "engine hung, by its own metrics", {"vllm": vllm(tokens=lambda t: 40 * min(t, 0))},
            frozenset({"EngineNoProgress"}),
        ),
        Scenario("engine dead", {"vllm": during(vllm(), nothing)}, frozenset({"EngineDown"})),
        Scenario(
            "KV storm", {"vllm": vllm(preemptions=lambda t: max(t, 0) / 4)}, frozenset({"EnginePreemptions"})
        ),
        Scenario(
            "queue burst", {"vllm": vllm(waiting=lambda t: max(t + 300, 0) / 2)},
            frozenset({"EngineQueueGrowth"}), needs_s=650.0, begins_s=-300.0,
        ),
        Scenario(
            "cold start", {"c": during(Requests(never_bad), both(Requests(never_bad), cold))},
            frozenset({"TokentrailColdStart"}),
        ),
        Scenario(
            "normal load, bad at exactly the budget", {"c": Requests(at_the_budget), "vllm": vllm()},
            may_follow=tickets,
        ),
        Scenario("normal load, the collector starts again", {"c": Requests(never_bad, reset_at=0.0)}),
        Scenario("normal load, 20 s without a scrape", {"c": during(Requests(never_bad), nothing, to_s=20.0)}),
        Scenario("normal load, five bad seconds", {"c": Requests(lambda t, _: float(0 <= t < 5))}, may_follow=tickets),
    ]  # fmt: skip
