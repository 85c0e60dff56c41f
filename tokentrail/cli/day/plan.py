"""The plan of a day of six engine processes with five faults, for pictures, newcomers and tests.

The day ends at a given time, and its clock says 13:11 then. At 03:00 a process starts while a nightly job sends its
requests; at 08:30 a tenant sends a burst; at 10:20 long documents take a process's KV blocks; at 12:00 version v2.4 of
a service is deployed, which computes long prompts slowly; at 13:02 a process hangs, and still does when the day ends.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tokentrail import Status
from tokentrail.cli.day.process import MS, US, Law, Limits, Planned, Process, S

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

LENGTH_S: Final = 25 * 3600
_END_S: Final = 13 * 3600 + 11 * 60
"""What the day's clock says when it ends."""
REQUESTS: Final = 17_000
"""Requests of a day, without those of its faults."""
_AROUND_FAULTS: Final = ((2.5, 3.5), (8.0, 9.25), (10.0, 10.75), (11.0, 13.2))
"""Hours."""
_MOST_ANSWER: Final = 600
_V24_ATTENTION: Final = 70.0

_LLAMA = Law(step=28 * MS, token=0.055 * MS, sequence=0.35 * MS, attention=1.5)
_QWEN = Law(step=24 * MS, token=0.03 * MS, sequence=0.4 * MS, attention=0.5)
_SMOL = Law(step=17 * MS, token=0.04 * MS, sequence=0.3 * MS)
_LARGE = Limits(seqs=24, batched_tokens=2048, kv_blocks=1100)
_MEDIUM = Limits(seqs=4, batched_tokens=4096, kv_blocks=4000, queue=28)
_SMALL = Limits(seqs=32, batched_tokens=2048, kv_blocks=2000)


@dataclass(frozen=True)
class Day:
    """The plan of a day that ends at `end` (unix ns). `scale` is the share of its requests: tests need fewer."""

    end: int
    seed: int = 7
    scale: float = 1.0

    def at(self, hour: int, minute: float = 0) -> int:
        """The unix ns at which the day's clock shows a time."""
        return self.end + int((hour * 3600 + minute * 60 - _END_S) * S) // US * US

    @property
    def start(self) -> int:
        """The first request may come at this time."""
        return self.end - LENGTH_S * S

    def processes(self) -> list[tuple[Process, list[Planned]]]:
        """Each process with its requests, in the order of their arrival."""
        random = np.random.default_rng(self.seed)
        began = self.start - 600 * S

        def process(service: str, instance: str, start: int = began, loading_s: float = 95, **more: object) -> Process:
            engine, model, variant, law, limits = {
                "llama-70b": ("vllm", "llama-3.3-70b", "v2.3", _LLAMA, _LARGE),
                "qwen-8b": ("sglang", "qwen3-8b", "main", _QWEN, _MEDIUM),
                "edge": ("tokentrail", "smollm2-1.7b", "main", _SMOL, _SMALL),
            }[service]
            made = Process(service, instance, engine, model, variant, law, limits, start, int(loading_s * S))
            return replace(made, **more)  # type: ignore[arg-type] # fields of Process

        slow = replace(_LLAMA, attention=_V24_ATTENTION)
        new = {"variant": "v2.4", "law": slow}
        # A service's process, and from when on it gets requests; those of one place follow each other.
        places = [
            [process("llama-70b", "vllm-a-7f9c"), process("llama-70b", "vllm-a-c2e1", self.at(12, 2), 110, **new)],
            [process("llama-70b", "vllm-b-4d21"), process("llama-70b", "vllm-b-9e30", self.at(12), 105, **new)],
            [process("qwen-8b", "sglang-a-91ee", hangs=self.at(13, 2))],
            [process("qwen-8b", "sglang-b-c0a8"), process("qwen-8b", "sglang-b-5e77", self.at(3), 95)],
            [process("edge", "tt-a-11aa")],
            [process("edge", "tt-b-22bb")],
        ]
        requests = self._requests(random)
        traffic: list[tuple[Process, list[Planned]]] = [(one, []) for place in places for one in place]
        index = {one.instance: i for i, (one, _) in enumerate(traffic)}
        for place, planned in requests:
            traffic[index[self._serving(places, place, planned.at).instance]][1].append(planned)
        return traffic

    def _serving(self, places: list[list[Process]], place: int, at: int) -> Process:
        """The process that gets a request: not one that has hung for a minute, or loads while the other one serves."""
        one = [process for process in places[place] if process.start <= at][-1]
        loads = one.start <= at < one.start + one.loading and one.service == "llama-70b"
        if loads or (one.hangs and at > one.hangs + 60 * S):
            return self._serving(places, place ^ 1, at)
        return one

    def _requests(self, random: np.random.Generator) -> list[tuple[int, Planned]]:
        """The requests, each with its place, in the order of arrival."""
        made = (self._usual, self._nightly, self._burst, self._documents, self._before_the_hang)
        parts = [make(random) for make in made]
        return sorted((one for part in parts for one in part), key=lambda one: one[1].at)

    def _usual(self, random: np.random.Generator) -> list[tuple[int, Planned]]:
        """The traffic of all services: it comes in small groups, and is lowest at two at night.

        That of a smaller day comes around the faults alone.
        """
        groups = random.poisson(REQUESTS * self.scale / 3)
        share = random.random(groups * 25)
        hour = (_END_S / 3600 - (1 - share) * LENGTH_S / 3600) % 24
        wanted = random.random(len(share)) < 0.55 + 0.45 * np.cos((hour - 14) / 12 * np.pi)
        if self.scale < 1:
            wanted &= np.any([(hour >= since) & (hour < until) for since, until in _AROUND_FAULTS], axis=0)
            wanted &= share > 0.1
        kept = share[wanted][:groups]
        starts = self.start + (kept * LENGTH_S * 1e9).astype(np.int64)
        size = random.geometric(0.5, len(starts))
        at = np.repeat(starts, size) + (random.exponential(0.8, size.sum()) * 1e9).astype(np.int64)
        place = np.repeat(random.choice(6, len(starts), p=[0.24, 0.24, 0.18, 0.18, 0.08, 0.08]), size)
        count = len(at)
        acme = random.random(count) < 0.68
        kind = random.choice(["chat", "completion", "batch"], count, p=[0.74, 0.18, 0.08])
        prompt = np.clip(random.lognormal(5.7, 0.8, count), 12, 3000)
        retrieval = acme & (place < 2) & (kind == "chat") & (random.random(count) < 0.42)
        tokens = np.where(retrieval, random.integers(3600, 9000, count), prompt).astype(np.int64)
        cached = np.where(random.random(count) < 0.4, tokens * random.random(count) * 0.6, 0).astype(np.int64)
        cached = np.where(retrieval, 0, cached // 16 * 16)
        answer = random.lognormal(np.where(kind == "completion", 2.6, 3.9), 0.6, count)
        luck = random.random(count)
        status = np.where(luck < 0.003, "error", np.where(luck < 0.013, "cancelled", "ok"))
        return self._planned(random, place, at, np.where(acme, "acme", "globex"), kind, tokens, answer, cached, status)

    def _nightly(self, random: np.random.Generator) -> list[tuple[int, Planned]]:
        """At 03:00 a job sends requests to the process that has just been started."""
        at = self.at(3) + random.integers(1 * S, 85 * S, 26)
        kind = random.choice(["chat", "batch"], 26, p=[0.75, 0.25])
        prompt = random.integers(200, 900, 26)
        return self._planned(random, np.full(26, 3), at, "acme", kind, prompt, random.lognormal(3.6, 0.5, 26))

    def _burst(self, random: np.random.Generator) -> list[tuple[int, Planned]]:
        """At 08:30 globex sends more to one service than it can take, for a quarter of an hour."""
        seconds = max(15 * 60 * self.scale, 180)
        count = random.poisson(1.3 * seconds)
        at = self.at(8, 30) + (random.random(count) * seconds * 1e9).astype(np.int64)
        prompt = random.integers(600, 1800, count)
        answer = random.lognormal(5.6, 0.35, count)
        return self._planned(random, random.integers(2, 4, count), at, "globex", "chat", prompt, answer)

    def _documents(self, random: np.random.Generator) -> list[tuple[int, Planned]]:
        """At 10:20 globex sends long documents with long answers to one process, for ten minutes."""
        seconds = max(10 * 60 * self.scale, 240)
        count = random.poisson(0.95 * seconds)
        at = self.at(10, 20) + (random.random(count) * seconds * 1e9).astype(np.int64)
        prompt = random.integers(700, 1500, count)
        return self._planned(
            random, np.zeros(count, int), at, "globex", "chat", prompt, random.lognormal(6.1, 0.2, count)
        )

    def _before_the_hang(self, random: np.random.Generator) -> list[tuple[int, Planned]]:
        """Some chats are under way at 13:02, and others come before the router notices."""
        at = self.at(13, 2) + random.integers(-6 * S, 50 * S, 18)
        prompt = random.integers(200, 900, 18)
        return self._planned(random, np.full(18, 2), at, "acme", "chat", prompt, random.lognormal(5.6, 0.35, 18))

    def _planned(
        self,
        random: np.random.Generator,
        place: Ints,
        at: Ints,
        tenant: object,
        kind: object,
        prompt: Ints,
        answer: Floats,
        cached: object = 0,
        status: object = "ok",
    ) -> list[tuple[int, Planned]]:
        count = len(at)
        columns = [np.broadcast_to(np.asarray(one), count).tolist() for one in (tenant, kind, prompt, cached, status)]
        answers = np.clip(answer, 1, _MOST_ANSWER).astype(np.int64).tolist()
        return [
            (to, Planned(when // US * US, tenant, kind, prompt, cached, answer, Status(status)))
            for to, when, answer, tenant, kind, prompt, cached, status in zip(
                place.tolist(), at.tolist(), answers, *columns, strict=True
            )
            if when < self.end
        ]
