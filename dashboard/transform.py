"""Turns API answers into the values of charts and tables. Pure functions; offsets and durations are in seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tokentrail.shared.formatting import THRESHOLDS, duration, instant

Json = Mapping[str, Any]


@dataclass(frozen=True)
class Series:
    """Values over a regular grid of times (UTC). None: the bucket has no value, and the line has a gap."""

    times: list[datetime]
    values: dict[str, list[float | None]]

    def latest(self, name: str) -> float | None:
        """The last value that is not None."""
        return next((value for value in reversed(self.values[name]) if value is not None), None)

    def top(self, name: str) -> float | None:
        """The largest value that is not None."""
        return max((value for value in self.values[name] if value is not None), default=None)


def on_grid(answer: Json, names: Sequence[str], window: Json, missing: float | None = None) -> Series:
    """A `/timeseries` answer as a Series with every bucket of the window. `missing` fills the absent buckets.

    Pass 0 for rates (nothing happened); leave None for percentiles and gauges (the value is unknown). A bucket that is
    not over and complete yet is left out: a few requests would make a cliff of it.
    """
    step = float(answer["step_s"])
    known_until = _unix(window["complete_until"])
    points = {_unix(point["t"]): point for point in answer["points"]}
    first, last = _unix(window["start"]) // step, _unix(window["end"]) // step
    grid = [round(index * step, 6) for index in range(int(first), int(last) + 1)]
    if grid and grid[-1] == _unix(window["end"]):
        grid.pop()  # the window ends at the moment at which this bucket begins
    over = [at + step <= known_until for at in grid]
    values = {
        name: [
            None if not is_over else points[at].get(name) if at in points else missing
            for at, is_over in zip(grid, over, strict=True)
        ]
        for name in names
    }
    return Series([datetime.fromtimestamp(at, UTC) for at in grid], values)


def goodput(answer: Json, requests: Series, window: Json) -> Series:
    """Goodput in every bucket of the window: 0 without a request, and unknown where nobody judges the requests.

    It is unknown too where the number of requests is.
    """
    known = on_grid(answer, ("value",), window)
    ended = requests.values["value"]
    filled = [0.0 if value is None and n == 0 else value for value, n in zip(known.values["value"], ended, strict=True)]
    return Series(known.times, {"value": filled})


def _unix(text: str) -> float:
    return round(instant(text).timestamp(), 6)


@dataclass(frozen=True)
class PhaseTotal:
    """One phase of a request, summed over all its stretches."""

    name: str
    seconds: float
    share: float
    """Share of the time of all phases, 0…1."""
    stretches: int


def phase_totals(phases: Sequence[Json]) -> list[PhaseTotal]:
    """The phases of a request summed by name, longest first."""
    total_s = sum(phase["duration_s"] for phase in phases)
    names = dict.fromkeys(phase["name"] for phase in phases)
    parts = {name: [p["duration_s"] for p in phases if p["name"] == name] for name in names}
    totals = [PhaseTotal(name, sum(p), sum(p) / total_s if total_s else 0.0, len(p)) for name, p in parts.items()]
    return sorted(totals, key=lambda total: -total.seconds)


def placed(tokens: Sequence[Json]) -> list[Json]:
    """The tokens of which it is known when they were emitted: those behind one that is missing have no `offset_s`."""
    return [token for token in tokens if token["offset_s"] is not None]


def thresholds(slos: Sequence[Json], metric: str, only: str | None) -> dict[str, float]:
    """The threshold of each SLO for a metric, in seconds, by the SLO's name. `only` names a single SLO."""
    wanted = [slo for slo in slos if only in (None, slo["name"])]
    return {
        slo["name"]: slo["thresholds"][f"{metric}_s"]
        for slo in wanted
        if slo["thresholds"].get(f"{metric}_s") is not None
    }


def missed(verdicts: Sequence[Json]) -> list[str]:
    """The thresholds that a request missed, in words: `TTFT 750 ms, 250 ms more than chat's 500 ms`."""
    return [
        f"{THRESHOLDS[miss['threshold']]} {duration(miss['value_s'])}, {duration(miss['over_s'])} more than "
        f"{verdict['slo']}'s {duration(miss['limit_s'])}"
        for verdict in verdicts
        for miss in verdict["missed"]
    ]


def missed_by(verdicts: Sequence[Json]) -> str | None:
    """What `missed` says in short, for a table: `chat: TTFT +250 ms, TPOT +1.16 s`. None: nothing was missed."""
    slos = {verdict["slo"]: verdict["missed"] for verdict in verdicts if verdict["missed"]}
    return (
        "; ".join(
            f"{slo}: " + ", ".join(f"{THRESHOLDS[miss['threshold']]} +{duration(miss['over_s'])}" for miss in of_slo)
            for slo, of_slo in slos.items()
        )
        or None
    )


def slo_state(slo: Json) -> str:
    """`page` or `ticket` when an alert fires, else `exhausted` (no budget left) or `ok`.

    Without attainment it is `idle`, as the SLO selects no request, or `unjudged`, as none of them is good or bad.
    """
    if slo["firing"]:
        return str(slo["firing"])
    if slo["attainment"] is None:
        return "unjudged" if slo["requests"]["total"] or slo["requests"]["in_flight"] else "idle"
    return "exhausted" if slo["budget_left"] is not None and slo["budget_left"] <= 0 else "ok"


def worst_first(slos: Sequence[Json]) -> list[Json]:
    """The SLOs by how urgent they are, and in their order: what fires first, those without requests last."""
    states = ("page", "ticket", "exhausted", "ok", "unjudged", "idle")
    return sorted(slos, key=lambda slo: states.index(slo_state(slo)))
