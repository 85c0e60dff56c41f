"""Random trails through the SDK, the store and the judge, against brute force: longest gaps and first visible tokens.

python -m tests.gaps --trails 100000 --seed 7
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from fastapi.testclient import TestClient

from collector.app.service import build_api
from collector.base.status import IngestStatus
from collector.otlp.signals import TRACES
from collector.store.insert import insert_otlp
from tests.collector.rows import NOW, SECOND
from tests.support.stores import open_new_store
from tokentrail import Status, semconv
from tokentrail.testing import ManualClock, MemoryTrail

MS = 1_000_000
T0 = NOW - 2000 * SECOND
TOGETHER = 2000
"""Requests under way at once. Their tokens come in three batches of the SDK."""
AT_ONCE = 30
"""Bodies of one insert."""
ASKED = (
    {"gap": 300}, {"gap": 2000}, {"gap": 900, "ttft": 100}, {"first_visible": 150}, {"first_visible": 90, "gap": 3000},
    {"gap": 50, "tpot": 30, "e2e": 5000},
)  # fmt: skip
"""Thresholds in ms."""
_STORED = """
    SELECT request_id, gap_ns, gap_index, gap_us FROM requests
"""
_OF_TOKENS = """
    SELECT any(request_id), 1000 * max(if(token_index = 0, 0, duration_us))
    FROM tokens INNER JOIN requests ON tokens.trace_id = requests.trace_id
    GROUP BY tokens.trace_id
"""


@dataclass
class Made:
    """One request; unix ns."""

    stamps: list[list[int]]
    """Of each answer."""
    status: Status
    end: int
    visible_ns: int | None
    reasoning: int | None

    @property
    def all(self):
        return sorted(at for of_choice in self.stamps for at in of_choice)

    def gap(self):
        """The longest wait and its place in the answer; None for a place that nobody knows, or that does not exist."""
        if not self.all:
            return None, None
        waits = [(at - before, i + 1) for of in self.stamps for i, (before, at) in enumerate(pairwise(of))]
        longest = max((wait for wait, _ in waits), default=0)
        places = {place for wait, place in waits if wait == longest}
        silence = 0 if self.status is Status.OK else self.end - self.all[-1]
        if silence > longest:
            return silence, {len(self.all)} if len(self.stamps) == 1 else {None}
        return longest, places if longest else {None}

    def values(self):
        """Each latency, and the bound below the first visible token; a value that is not known is missing."""
        tokens, choices = self.all, sum(map(bool, self.stamps))
        waited = self.status is Status.CANCELLED and not tokens
        known = {"e2e": self.end - T0, "ttft": self.end - T0 if waited else tokens[0] - T0 if tokens else None}
        between = sum(of[-1] - of[0] for of in self.stamps if of)
        gaps = len(tokens) - choices
        known["tpot"] = between / gaps if gaps > 0 and between > 0 else 0 if gaps > 0 else None
        known["gap"] = self.gap()[0] if len(tokens) > choices or self.gap()[0] else None
        if waited or not tokens or self.reasoning == 0:
            known["first_visible"] = known["ttft"]
        if self.visible_ns is not None:
            known["first_visible"] = self.visible_ns
        return known, known["ttft"]

    def verdict(self, limits):
        known, least_visible = self.values()
        if self.status is Status.ERROR:
            return "bad"
        late = any(known.get(name) is not None and known[name] > ns for name, ns in limits.items())
        late |= "first_visible" in limits and "first_visible" not in known and least_visible > limits["first_visible"]
        if late:
            return "bad"
        if self.status is Status.CANCELLED:
            return "excused"
        return "undetermined" if any(name not in known for name in limits) else "good"


def make(chance, n):
    """Trails with stalls, several answers, tokens that come together, and ends without success."""
    for _ in range(n):
        stamps = []
        for _ in range(chance.choice([1, 1, 1, 1, 1, 2, 3])):
            waits = chance.lognormal(np.log(20_000), 1, chance.geometric(0.12) - 1).astype(np.int64)
            odd = chance.random(len(waits))
            waits[odd < 0.1] = 0
            waits[odd > 0.97] = chance.integers(500_000, 4_000_000, (odd > 0.97).sum())
            stamps.append((T0 + waits.cumsum() * 1000).tolist())
        status = Status(chance.choice(["ok", "error", "cancelled"], p=[0.8, 0.08, 0.12]))
        made = Made(stamps, status, T0, None, chance.choice([None, 0, 3]))
        tokens = made.all
        if len(tokens) < 3 and made.reasoning:
            made.reasoning = None
        made.end = (tokens[-1] if tokens else T0) + int(chance.integers(0, 4_000_000)) * 1000 * int(
            chance.integers(0, 2)
        )
        if tokens and chance.random() < 0.4:
            made.visible_ns = int(chance.integers(tokens[0] - T0, made.end - T0 + 1)) // 1000 * 1000
        yield made


def record(chance, trail, made):
    """Record these requests in three batches, by steps and by arrivals, and end them."""
    requests = []
    for number, one in made:
        request = trail.start_request(operation="chat", model="m", arrival_ns=T0, request_id=str(number))
        several = len(one.stamps) > 1
        choices = [request.choice(i) if several else request for i in range(len(one.stamps))]
        cuts = [sorted(chance.integers(0, len(of) + 1, 2).tolist()) for of in one.stamps]
        requests.append(
            (
                request,
                one,
                [(c, of[:a], of[a:b], of[b:]) for c, of, (a, b) in zip(choices, one.stamps, cuts, strict=True)],
            )
        )
    for turn in (1, 2, 3):
        for _, one, parts in requests:
            for recipient, *of_turns in parts:
                stamps = of_turns[turn - 1]
                if one.reasoning == 3:
                    for at in stamps:
                        trail.step(0, T0, at, [recipient])
                elif stamps:
                    recipient.tokens(stamps)
        trail.flush(0)
    for request, one, _ in requests:
        told = {} if one.visible_ns is None else {semconv.TIME_TO_FIRST_VISIBLE_TOKEN: one.visible_ns / 1e9}
        request.end(one.end, status=one.status, reasoning_tokens=one.reasoning, attributes=told)
    trail.flush(0)


def check(rows_of, store, ask, trails, seed):
    """Compare so many trails with what the store and the API say of them. Raises AssertionError."""
    chance, trail = np.random.default_rng(seed), MemoryTrail(clock=ManualClock(T0))
    made = [*enumerate(make(chance, trails))]
    for i in range(0, trails, TOGETHER):
        record(chance, trail, made[i : i + TOGETHER])
    bodies = trail.transport.bodies
    for i in range(0, len(bodies), AT_ONCE):  # the bytes of two messages one after the other are their union
        insert_otlp(store, TRACES, b"".join(bodies[i : i + AT_ONCE]), f"segment-{seed}-{i}")
    found = {int(row[0]): row[1:] for row in rows_of(_STORED)}
    assert len(found) == trails
    by_tokens = {int(number): gap for number, gap in rows_of(_OF_TOKENS)}
    for number, one in made:
        gap, places = one.gap()
        stored_ns, index, us = found[number]
        assert stored_ns == gap, (number, one, stored_ns)
        assert us == (0 if gap is None else gap // 1000), (number, one, us)
        assert places is None or index in places, (number, one, index)
        if one.status is Status.OK and one.all:
            assert by_tokens[number] == gap, (number, one)
    for ms in ASKED:
        verdicts = [one.verdict({name: limit * MS for name, limit in ms.items()}) for _, one in made]
        answer = ask("goodput", start="-1h", **{name: f"{limit}ms" for name, limit in ms.items()})
        requests = answer["requests"]
        n = {verdict: verdicts.count(verdict) for verdict in ("good", "bad", "undetermined", "excused")}
        assert {name: requests[name] for name in ("good", "undetermined", "excused")} == {
            name: n[name] for name in ("good", "undetermined", "excused")
        }, ms
        assert requests["total"] - sum(n.values()) == 0
        assert min(n["good"], n["bad"]) > trails // 100, (ms, n)
    return made


def main():
    """Run it on a store of its own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trails", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=7)
    asked = parser.parse_args()
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        store = open_new_store(Path(folder) / "db")
        app, _ = build_api(store, (), IngestStatus(), lost_after_s=30.0, clock=ManualClock(NOW))
        client = TestClient(app)

        def ask(path, **params):
            return client.get(f"/api/v1/{path}", params=params).raise_for_status().json()

        check(lambda sql: store.query(sql).result_rows, store, ask, asked.trails, asked.seed)
        store.close()
    print(f"{asked.trails} trails are as brute force says, in {time.monotonic() - began_s:.0f} s")


if __name__ == "__main__":
    main()
