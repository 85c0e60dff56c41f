"""API answers as charts and tables need them. Pure: JSON in, plain lists out; offsets and durations in seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np

from dashboard.formatting import instant
from tokentrail.semconv import Phase

Json = Mapping[str, Any]


@dataclass(frozen=True)
class Series:
    """Values over a regular grid of times (UTC). None: nothing to say about that bucket; a line breaks there."""

    times: list[datetime]
    values: dict[str, list[float | None]]

    def latest(self, name: str) -> float | None:
        """The last value that is there."""
        return next((value for value in reversed(self.values[name]) if value is not None), None)

    def top(self, name: str) -> float | None:
        """The largest value that is there."""
        return max((value for value in self.values[name] if value is not None), default=None)


def on_grid(answer: Json, names: Sequence[str], window: Json, missing: float | None = None) -> Series:
    """A `/timeseries` answer with every bucket of the window, those that the answer leaves out holding `missing`.

    Pass 0 for rates (nothing happened); leave None for percentiles and gauges (nothing is known).
    """
    step = float(answer["step_s"])
    found = {_unix(point["t"]): point for point in answer["points"]}
    first, last = _unix(window["start"]) // step, _unix(window["end"]) // step
    grid = [round(index * step, 6) for index in range(int(first), int(last) + 1)]
    if grid and grid[-1] not in found and grid[-1] == _unix(window["end"]):
        grid.pop()  # the window ends where this bucket would begin
    values = {name: [found[at].get(name) if at in found else missing for at in grid] for name in names}
    return Series([datetime.fromtimestamp(at, UTC) for at in grid], values)


def _unix(text: str) -> float:
    return round(instant(text).timestamp(), 6)


@dataclass(frozen=True)
class PhaseTotal:
    """All stretches of one phase of a request."""

    name: str
    seconds: float
    share: float
    """Of the request's phases together, 0…1."""
    stretches: int


def phase_totals(phases: Sequence[Json]) -> list[PhaseTotal]:
    """The phases of a request summed by name, longest first."""
    whole = sum(phase["duration_s"] for phase in phases)
    names = dict.fromkeys(phase["name"] for phase in phases)
    parts = {name: [p["duration_s"] for p in phases if p["name"] == name] for name in names}
    totals = [PhaseTotal(name, sum(p), sum(p) / whole if whole else 0.0, len(p)) for name, p in parts.items()]
    return sorted(totals, key=lambda total: -total.seconds)


def waiting_phases(tokens: Sequence[Json], phases: Sequence[Json]) -> list[str]:
    """For each token the phase in which most of the wait for it fell; '' when the engine reports no phases."""
    if not tokens or not phases:
        return [""] * len(tokens)
    end = np.array([token["offset_s"] for token in tokens])
    start = end - [token["duration_s"] for token in tokens]
    begins = np.array([[phase["offset_s"]] for phase in phases])
    ends = begins + [[phase["duration_s"]] for phase in phases]
    overlap = np.clip(np.minimum(end, ends) - np.maximum(start, begins), 0, None)
    # Tokens of one step share its end, so all but the first waited for nothing: they belong to where they came out.
    came_out = (begins < end) & (end <= ends + 1e-9)
    return [str(phases[index]["name"]) for index in np.argmax(overlap + came_out * 1e-12, axis=0)]


def interference(steps: Sequence[Json], tokens: Sequence[Json], phases: Sequence[Json]) -> list[Json]:
    """Steps that prefilled somebody else's prompt while this request waited for its next token."""
    if not tokens:
        return []
    first, last = tokens[0]["offset_s"], tokens[-1]["offset_s"]
    own = [(p["offset_s"], p["offset_s"] + p["duration_s"]) for p in phases if p["name"] == Phase.PREFILL]
    return [
        step
        for step in steps
        if step["prefill_tokens"]
        and _overlap(step, first, last) > 0
        and not any(_overlap(step, begin, end) > step["duration_s"] / 2 for begin, end in own)
    ]


def _overlap(step: Json, begin: float, end: float) -> float:
    return float(min(step["offset_s"] + step["duration_s"], end) - max(step["offset_s"], begin))


def longest_waits(tokens: Sequence[Json], phases: Sequence[Json], steps: Sequence[Json], k: int = 5) -> list[Json]:
    """The k tokens waited for longest after the first, with what the step that made each was doing."""
    waited_in = waiting_phases(tokens, phases)
    by_number = {step["step"]: step for step in steps}
    after_first = sorted(range(1, len(tokens)), key=lambda i: -tokens[i]["duration_s"])[:k]
    rows: list[Json] = []
    for i in after_first:
        step = by_number.get(tokens[i]["step"], {})
        rows.append(
            {
                "token": tokens[i]["index"],
                "wait_s": tokens[i]["duration_s"],
                "at_s": tokens[i]["offset_s"],
                "phase": waited_in[i] or None,
                "step": tokens[i]["step"],
                "prefill_tokens": step.get("prefill_tokens"),
                "decode_tokens": step.get("decode_tokens"),
                "kv_blocks_evicted": step.get("kv_blocks_evicted"),
            }
        )
    return rows


def thresholds(slos: Sequence[Json], metric: str, only: str | None) -> dict[str, float]:
    """What each SLO (or `only` that one) allows for a metric, in seconds, by its name."""
    wanted = [slo for slo in slos if only in (None, slo["name"])]
    return {
        slo["name"]: slo["thresholds"][f"{metric}_s"]
        for slo in wanted
        if slo["thresholds"].get(f"{metric}_s") is not None
    }


def slo_state(slo: Json) -> str:
    """`page`, `ticket`, `exhausted` (nothing fires, but the budget is spent), `ok`, or `idle` without any request."""
    if slo["firing"]:
        return str(slo["firing"])
    if slo["attainment"] is None:
        return "idle"
    return "exhausted" if slo["budget_left"] is not None and slo["budget_left"] <= 0 else "ok"
