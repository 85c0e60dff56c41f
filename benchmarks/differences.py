"""How often `/differences` names what was planted first, and says none where nothing was: 200 draws of each dimension.

A draw is 3,000 requests, 5 % of which are bad; of those with the planted value, or pair of values, more are. What is
drawn goes through the functions that choose; a test holds that the store counts a draw as this file does. The peers
are what people read off a list of shares: the value with the largest lift (of those that 5 % of the bad requests have
or more), and the one whose shares differ most.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final

import numpy as np
import typer

from benchmarks.differences_time import blamed
from benchmarks.report import JsonPath, Quick, publish
from collector.measure.arrivals import UNKNOWN
from collector.measure.candidates import NO_CLASS, Candidate, Met, candidates, told
from collector.measure.chance import Bools, Floats, Ints
from collector.measure.telling import Difference, Trait

REQUESTS: Final = 3000
BASE: Final = 0.05
"""Of the other requests, so many are bad."""
SIZES: Final = ((0.05,), (0.25, 0.15, 0.1), (0.5, 0.25))
"""Of the requests with nothing, a value, or a pair of values that is planted, so many are bad."""
LEVELS: Final = (0.25, 0.5, 0.75, 0.9, 0.99)
MANY, FEW = "at least", "less than"
"""Planted into a number: above its quantile 0.8, or below 0.2, neither of which is an edge."""
NO_STEPS: Final = ("preempted", "cause", "batch_at_arrival", "kv_usage_at_arrival")
"""What sglang does not tell here."""

Value = tuple[str, str]
PLANTED: Final[Mapping[str, tuple[Value, ...]]] = {
    "model": (("model", "mistral"),),
    "tenant": (("tenant", "t2"),),
    "variant": (("variant", "v2"),),
    "engine": (("engine", "sglang"),),
    "service": (("service", "search"),),
    "instance": (("instance", "search-1"),),
    "slo_class": (("slo_class", "batch"),),
    "operation": (("operation", "text_completion"),),
    "vantage": (("vantage", "client"),),
    "label": (("label.region", "asia"),),
    "input_tokens": (("input_tokens", MANY),),
    "output_tokens": (("output_tokens", MANY),),
    "cached_share": (("cached_share", FEW),),
    "batch_at_arrival": (("batch_at_arrival", MANY),),
    "kv_usage_at_arrival": (("kv_usage_at_arrival", MANY),),
    "idle_time": (("idle_time", MANY),),
    "status": (("status", "error"),),
    "error_type": (("error_type", "overloaded"),),
    "finish_reason": (("finish_reason", "length"),),
    "preempted": (("preempted", "yes"),),
    "cold_start": (("cold_start", "yes"),),
    "longest_wait": (("longest_wait", "kv"),),
    "cause": (("cause", "waiting for KV"),),
    "model and variant": (("model", "qwen"), ("variant", "v2")),
    "tenant and input_tokens": (("tenant", "t0"), ("input_tokens", MANY)),
    "instance and label": (("instance", "search-1"), ("label.region", "eu")),
    "service and kv_usage_at_arrival": (("service", "search"), ("kv_usage_at_arrival", MANY)),
    "cached_share and batch_at_arrival": (("cached_share", FEW), ("batch_at_arrival", MANY)),
    "nothing": (),
}
HOW: Final = {"nothing": ("sampled",), "tenant": ("sampled", "waiting")}


@dataclass(frozen=True)
class Traffic:
    """Requests: of each dimension of text which of its values, of each other one a number; and what of it is known."""

    values: Mapping[str, Sequence[str]]
    texts: Mapping[str, Ints]
    numbers: Mapping[str, Floats]
    known: Mapping[str, Bools]

    def has(self, value: Value) -> Bools:
        """Which requests have what is planted, known or not."""
        name, wanted = value
        if name in self.texts:
            return np.equal(self.texts[name], self.values[name].index(wanted))
        number = self.numbers[name]
        return number > np.quantile(number, 0.8) if wanted == MANY else number < np.quantile(number, 0.2)

    def edges(self) -> dict[str, list[float]]:
        """The quantiles of each number, as sql/queries/differences_edges.sql and differences_arrival.sql have them."""
        known = {name: number[self.known[name]] for name, number in self.numbers.items()}
        levels = {"cached_share": LEVELS[:-1]}
        return {
            name: np.unique(np.quantile(of, levels.get(name, LEVELS))).tolist() if len(of) else []
            for name, of in known.items()
        }


def draw(random: np.random.Generator, n: int = REQUESTS) -> Traffic:
    """Requests of mixed kinds. What depends on something in life does here: an engine has its models."""

    def pick(*shares: float) -> Ints:
        return random.choice(len(shares), n, p=np.array(shares) / sum(shares))

    model, service, status, wait = pick(35, 25, 15, 15, 10), pick(5, 3, 2), pick(78, 17, 5), pick(60, 20, 12, 5, 3)
    texts = {
        "model": model, "tenant": pick(*(1 / (i + 1) for i in range(8))), "variant": pick(7, 3),
        "engine": (model >= 3).astype(np.int64), "service": service, "instance": service * 3 + pick(1, 1, 1),
        "slo_class": pick(7, 3), "operation": pick(8, 2), "vantage": pick(3, 1), "status": status,
        "error_type": np.where(status == 1, pick(5, 3, 2) + 1, 0),
        "finish_reason": np.where(status == 0, pick(7, 2, 1) + 1, 0), "preempted": pick(9, 1), "cold_start": pick(9, 1),
        "longest_wait": wait, "label.region": pick(5, 3, 2), "label.app": pick(5, 3, 2),
        "cause": np.where((wait == 2) & (random.random(n) < 0.6), 1, pick(4, 0.5, 2, 2, 1)),
    }  # fmt: skip
    values = {
        "model": ("llama", "qwen", "mistral", "phi", "gemma"), "tenant": [f"t{i}" for i in range(8)],
        "variant": ("v1", "v2"), "engine": ("vllm", "sglang"), "service": ("chat", "search", "code"),
        "instance": [f"{name}-{i}" for name in ("chat", "search", "code") for i in range(3)],
        "slo_class": ("interactive", "batch"), "operation": ("chat", "text_completion"),
        "vantage": ("server", "client"), "status": ("ok", "error", "cancelled"),
        "error_type": ("", "overloaded", "timeout", "invalid"),
        "finish_reason": ("", "stop", "length", "tool_calls"), "preempted": ("no", "yes"), "cold_start": ("", "yes"),
        "longest_wait": ("", "batch", "kv", "tokens", "priority"), "label.region": ("eu", "us", "asia"),
        "label.app": ("", "web", "batch"),
        "cause": ("none", "waiting for KV", "prompts of others", "decoding", "stall"),
    }  # fmt: skip
    idle = np.where(random.random(n) < 0.3, random.exponential(5, n), 0)
    batch = np.where(idle > 0, 1, 1 + random.binomial(63, random.beta(2, 2, n)))
    prompt = np.ceil(random.lognormal(6, 1, n))
    numbers = {
        "input_tokens": prompt,
        "output_tokens": np.where(status == 0, np.ceil(random.lognormal(5, 0.8, n)), 0),
        "cached_share": np.floor(prompt * random.beta(1, 2, n) * (random.random(n) < 0.85)) / prompt,
        "batch_at_arrival": batch * 1.0,
        "kv_usage_at_arrival": np.clip(np.round(batch / 80 + random.normal(0, 0.15, n), 3), 0, 1),
        "idle_time": np.round(idle, 3),
    }
    known = dict.fromkeys((*texts, *numbers), np.ones(n, bool)) | dict.fromkeys(NO_STEPS, texts["engine"] == 0)
    return Traffic(values, texts, numbers, known | {"output_tokens": status == 0})


@dataclass(frozen=True)
class Drawn:
    """The requests of a draw as the functions that choose take them, in the place of the store."""

    traffic: Traffic
    edges: Mapping[str, Sequence[float]]
    classes: Mapping[str, Ints]
    weight: Floats
    bad: Bools

    @classmethod
    def of(cls, traffic: Traffic, bad: Bools, weight: Floats | None = None) -> Drawn:
        """Requests of which the bad ones are selected."""
        edges = traffic.edges()
        classes = {name: np.searchsorted(edges[name], of, "right") for name, of in traffic.numbers.items()}
        return cls(traffic, edges, classes, np.ones(len(bad)) if weight is None else weight, bad)

    def rows(self) -> list[dict[str, Any]]:
        """The requests of each side by value, as sql/queries/value_counts.sql counts them."""
        rows = []
        for name, codes in {**self.traffic.texts, **self.classes}.items():
            known = self.traffic.known[name]
            of_text = name in self.traffic.texts
            values = [*(self.traffic.values[name] if of_text else map(str, range(len(self.edges[name]) + 1)))]
            values.append(UNKNOWN if of_text else NO_CLASS)
            codes = np.where(known, codes, len(values) - 1)
            sides = [np.bincount(codes, self.weight * side, len(values)).tolist() for side in (self.bad, ~self.bad)]
            rows += [
                {"name": name, "value": value, "selected": one, "others": rest}
                for value, one, rest in zip(values, *sides, strict=True)
                if one or rest
            ]
        return rows

    def count_met(self, best: Sequence[Candidate]) -> Met:
        """The requests by which of some candidates they meet, as sql/queries/differences_together.sql counts them."""
        bits = sum((self._meets(one).astype(np.int64) << i for i, one in enumerate(best)), np.zeros(1, np.int64))
        groups, group = np.unique(bits, return_inverse=True)
        sums = [
            np.bincount(group, of).astype(np.float64)
            for w in (self.weight, self.weight**2)
            for of in (w * self.bad, w * ~self.bad)
        ]
        return Met((groups[:, None] >> np.arange(len(best))) & 1 == 1, *sums)

    def _meets(self, one: Candidate) -> Bools:
        name = one.condition.dimension
        if one.sign == "=":
            return self.traffic.known[name] & self.traffic.has((name, str(one.bound)))
        number, bound = self.traffic.numbers[name], float(one.bound)
        return self.traffic.known[name] & (number >= bound if one.sign == ">=" else number < bound)


def plant(random: np.random.Generator, traffic: Traffic, planted: Sequence[Value], size: float, how: str = "") -> Drawn:
    """Requests that are bad by chance, and more often with all of what is planted.

    `sampled`: one good one of four is left. `waiting`: nearly all bad ones waited for the batch, since they are bad.
    """
    n = len(traffic.texts["model"])
    hit = np.all([traffic.has(value) for value in planted], axis=0) if planted else np.zeros(n, bool)
    bad = random.random(n) < np.where(hit, size, BASE)
    if how == "waiting":
        waited = random.random(n) < np.where(bad, 0.95, 0.02)
        traffic = replace(traffic, texts={**traffic.texts, "longest_wait": np.where(waited, 1, 0)})
    kept = np.where(bad, 1.0, 4.0 * (random.random(n) < 0.25)) if how == "sampled" else np.ones(n)
    return Drawn.of(traffic, bad, kept)


def says(trait: Trait, value: Value) -> bool:
    """A condition is what was planted; of a number, with any bound."""
    name, wanted = value
    return trait.dimension == name and (
        trait.value.startswith(wanted) if wanted in (MANY, FEW) else trait.value == wanted
    )


def judged(found: Sequence[Difference], planted: Sequence[Value]) -> str:
    """`first` (of nothing: none), `named` (later, behind another, or in part), `missed` (none), or `another` alone."""
    if not found or not planted:
        return "another" if found else "missed" if planted else "first"
    first = found[0].conditions
    if len(first) == len(planted) and all(any(says(trait, value) for trait in first) for value in planted):
        return "first"
    named = any(says(trait, value) for one in found for trait in one.conditions for value in planted)
    behind = any(" ".join(value) in text for one in found for text in one.also for value in planted)
    return "named" if named or behind else "another"


def peers(of: Sequence[Candidate], bad: float, good: float) -> dict[str, Trait]:
    """The value that people read off a list of shares, by what they sort it by."""
    lifts: Callable[[Candidate], float] = lambda one: one.selected / max(one.others, 0.5)  # noqa: E731
    apart: Callable[[Candidate], float] = lambda one: one.selected / bad - one.others / good  # noqa: E731
    enough = [one for one in of if one.selected >= 0.05 * bad]
    return {"largest_lift": max(enough, key=lifts).condition, "largest_difference": max(of, key=apart).condition}


def main(
    quick: Quick = False,
    json: JsonPath = None,
    seeds: Annotated[int, typer.Option(help="Draws of each kind.", min=2)] = 200,
    time_: Annotated[bool, typer.Option("--time", help="Traffic that depends on time: a result of its own.")] = False,
) -> None:
    """Draw, ask and count. 200 seeds take 2 minutes of one core; --quick is 10."""
    seeds = 10 if quick else seeds
    if time_:
        publish("differences_time", {"seeds": seeds, **blamed(seeds)}, packages=("numpy",), quick=quick, path=json)
        return
    counted: dict[str, Counter[str]] = {}
    begun = time.process_time()
    for seed in range(seeds):
        random = np.random.default_rng(seed)
        traffic = draw(random)
        for name, planted in PLANTED.items():
            for size in SIZES[len(planted)]:
                for how in ("", *HOW.get(name, ())):
                    drawn = plant(random, traffic, planted, size, how)
                    key = f"{name}{', ' * bool(how)}{how}, {size:.0%}"
                    count(counted.setdefault(key, Counter()), drawn, planted)
    numbers: dict[str, Any] = {"seeds": seeds, "requests": REQUESTS, "bad_otherwise": BASE}
    names = ("first", "named", "missed", "another", "first_and_more", "largest_lift", "largest_difference")
    numbers |= {key: {name: counts[name] for name in names} for key, counts in counted.items()}
    numbers["cpu_s"] = time.process_time() - begun
    publish("differences", numbers, packages=("numpy",), quick=quick, path=json)


def count(counts: Counter[str], drawn: Drawn, planted: Sequence[Value]) -> None:
    """What is told of a draw, and by the peers."""
    rows = drawn.rows()
    differences, everything, _ = told(rows, drawn.edges, drawn.count_met)
    answer = judged(differences, planted)
    counts[answer] += 1
    counts["first_and_more"] += answer == "first" and len(differences) > 1
    by_peers = peers([*candidates(rows, drawn.edges)], everything.selected, everything.others)
    counts.update(name for name, trait in by_peers.items() if any(says(trait, value) for value in planted))


if __name__ == "__main__":
    typer.run(main)
