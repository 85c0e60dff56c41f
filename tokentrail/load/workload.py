"""Plans the requests of a load: Poisson arrivals and log-normal lengths, as in published serving traces.

The plan comes from a seeded generator, so a run can be repeated request by request.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

_TEXT = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work government number night point home water room mother "
    "area money story fact month lot right study book eye job word business issue side kind head house service friend "
    "father power hour game line end member law car city community name president team minute idea kid body history "
    "back parent face level office door health person art war party result change morning reason research girl guy "
    "moment air teacher force education information"
)
_WORDS = _TEXT.split()

_TASKS = (
    "Summarise these notes in a few sentences:",
    "Explain how these are connected:",
    "Write a short story that uses these words:",
    "Turn this list into an outline for a talk:",
    "What would you ask the author of these notes?",
)


@dataclass(frozen=True, slots=True)
class Lengths:
    """A log-normal distribution of token counts, cut off at both ends."""

    median: float
    sigma: float
    low: int
    high: int

    def draw(self, rng: random.Random) -> int:
        """One length in tokens, within [low, high]."""
        return min(self.high, max(self.low, round(rng.lognormvariate(math.log(self.median), self.sigma))))


@dataclass(frozen=True, slots=True)
class Profile:
    """One kind of traffic: its SLO class and the lengths of its prompts and outputs."""

    slo_class: str
    prompt: Lengths
    output: Lengths
    temperature: float = 0.7
    ignore_eos: bool = False


CHAT = Profile("chat", prompt=Lengths(60, 0.9, 4, 400), output=Lengths(28, 0.7, 1, 120))
COMPLETION = Profile("completion", prompt=Lengths(110, 0.6, 16, 400), output=Lengths(8, 0.6, 1, 32), temperature=0.0)
LONG_GENERATION = Profile("chat", prompt=Lengths(90, 0.2, 40, 160), output=Lengths(90, 0.2, 60, 120), ignore_eos=True)
"""Fills a KV cache: each output is about as long as its prompt."""


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """A request to send, `at_s` seconds after the start of the run."""

    at_s: float
    prompt: str
    max_tokens: int
    slo_class: str
    temperature: float
    seed: int
    ignore_eos: bool = field(default=False)


def _request(profile: Profile, at_s: float, rng: random.Random) -> PlannedRequest:
    # An English word takes about 1.3 tokens; the chat template and the task take some 30 more.
    words = max(1, round(profile.prompt.draw(rng) / 1.3))
    prompt = f"{rng.choice(_TASKS)} {' '.join(rng.choices(_WORDS, k=words))}"
    return PlannedRequest(
        at_s=at_s,
        prompt=prompt,
        max_tokens=profile.output.draw(rng),
        slo_class=profile.slo_class,
        temperature=profile.temperature,
        seed=rng.randrange(2**31),
        ignore_eos=profile.ignore_eos,
    )


def poisson(mix: dict[Profile, float], *, seconds: float, seed: int) -> Iterator[PlannedRequest]:
    """Independent Poisson arrivals, merged in time order.

    `mix` gives each profile its rate in requests per second. Raises ValueError for a rate that is not positive.
    """
    if any(rate <= 0 for rate in mix.values()):
        raise ValueError(f"arrival rates must be positive, got {sorted(mix.values())}")
    rng = random.Random(seed)  # noqa: S311 - a repeatable workload, not a secret
    profiles, rates = list(mix), list(mix.values())
    # Independent Poisson processes together are one Poisson process; each arrival draws its profile by rate.
    at_s = rng.expovariate(sum(rates))
    while at_s < seconds:
        yield _request(rng.choices(profiles, weights=rates)[0], at_s, rng)
        at_s += rng.expovariate(sum(rates))


def burst(profile: Profile, *, count: int, at_s: float, seed: int) -> Iterator[PlannedRequest]:
    """`count` requests at the same moment, as a retry storm or a batch job sends them."""
    rng = random.Random(seed)  # noqa: S311
    for _ in range(count):
        yield _request(profile, at_s, rng)
