"""The first lines of the page Request: what was missed, by how much, why, and what a typical request takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dashboard.transform import Json
from tokentrail.shared.formatting import THRESHOLDS, count, counted, duration, plain, tpot

PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "ttft": ("ttft",),
    "tpot": ("rest",),
    "gap": ("rest",),
    "e2e": ("ttft", "rest"),
    "first_visible": ("ttft", "rest"),
}
"""The parts of a request's time that each threshold is about: before the first token (`ttft`), and after it."""
MOST: Final = 3
_LEAST: Final = 0.1
"""Share of all that is beyond typical, below which a cause is not named."""


@dataclass(frozen=True)
class Group:
    """What a request spent on causes that people call by one name, in seconds."""

    name: str
    colour: str
    ttft_s: float
    rest_s: float
    excess_s: float | None
    """Beyond a typical request; None: there is none to compare with."""
    culprits: Sequence[Json]

    def of(self, parts: Sequence[str]) -> float:
        """The time in these parts: before the first token (`ttft`), or after it (`rest`)."""
        return self.ttft_s * ("ttft" in parts) + self.rest_s * ("rest" in parts)


def groups(explained: Json, parts: Sequence[str] = ("ttft", "rest")) -> list[Group]:
    """The causes of an answer's `explained` by their group, the one with the most beyond typical in `parts` first."""
    told = []
    for name in dict.fromkeys(cause["group"] for cause in explained["causes"]):
        of_group = [cause for cause in explained["causes"] if cause["group"] == name]
        asked = [cause for cause in of_group if cause["of"] in parts]
        known = [cause["excess_s"] for cause in asked if cause["excess_s"] is not None]
        ttft, rest = (sum(one["time_s"] for one in of_group if one["of"] == of) for of in ("ttft", "rest"))
        culprits = [culprit for cause in asked for culprit in cause["culprits"]]
        culprits.sort(key=lambda one: -one["time_s"])
        told.append(Group(name, of_group[0]["colour"], ttft, rest, sum(known) if known else None, culprits))
    return sorted(told, key=lambda one: -(one.of(parts) if one.excess_s is None else one.excess_s))


def verdict(request: Json) -> str:
    """What was missed and by whom, as Markdown: `bad for chat: TTFT 4.59 s, 1 s promised`."""
    bad = [one for one in request["verdicts"] if one["verdict"] == "bad"]
    if bad:
        return "; ".join(f"bad for {plain(one['slo'])}: {_missed(one, request)}" for one in bad)
    if not request["verdicts"]:
        return "No SLO selects this request"
    states = dict.fromkeys(one["verdict"] for one in request["verdicts"])
    return "; ".join(
        f"{state} for {', '.join(plain(one['slo']) for one in request['verdicts'] if one['verdict'] == state)}"
        for state in states
    )


def _missed(bad: Json, request: Json) -> str:
    if not bad["missed"]:
        return f"it ended as {request['status']}" + (
            f" ({plain(request['error_type'])})" if request["error_type"] else ""
        )
    return ", ".join(
        f"{THRESHOLDS[miss['threshold']]} {duration(miss['value_s'])}, {duration(miss['limit_s'])} promised"
        for miss in bad["missed"]
    )


def parts_missed(request: Json) -> tuple[str, ...]:
    """The parts of the time in which thresholds were missed: all of it for a failed request, none for a good one."""
    bad = [one for one in request["verdicts"] if one["verdict"] == "bad"]
    names = [miss["threshold"] for one in bad for miss in one["missed"]]
    if bad and not names:
        return ("ttft", "rest")
    return tuple(part for part in ("ttft", "rest") if any(part in PARTS[name] for name in names))


def why(request: Json, explained: Json | None) -> str:
    """The largest causes in the part that was missed, as Markdown; '' where nothing was missed or is explained."""
    parts = parts_missed(request)
    if not parts or not explained or not explained["causes"]:
        return ""
    causes = groups(explained, parts)
    beyond = sum(max(one.excess_s or 0.0, 0.0) for one in causes)
    named = [one for one in causes if one.excess_s is None or one.excess_s >= _LEAST * beyond][:MOST]
    return "Why: " + " + ".join(_named(one, parts, request) for one in named if one.of(parts)) + "."


def _named(group: Group, parts: Sequence[str], request: Json) -> str:
    text = f"{group.name} {duration(group.of(parts))}"
    if group.name == "own prompt" and request["input_tokens"] is not None:
        cached = "" if request["cached_tokens"] is None else f", {count(request['cached_tokens'])} cached"
        return f"{text} ({counted(request['input_tokens'], 'token')}{cached})"
    if group.culprits:
        worst = group.culprits[0]
        if worst["trace_id"]:
            return f"{text} (most by [{plain(worst['name'])}]({_link(worst)}))"
    return text


def _link(culprit: Json) -> str:
    span = f"&span_id={culprit['span_id']}" if culprit["span_id"] else ""
    return f"/request?trace_id={culprit['trace_id']}{span}"


def typical(request: Json, explained: Json | None) -> str:
    """What a typical request of the same model and class takes; '' where none is explained."""
    if not explained or explained["typical_ttft_s"] is None:
        return ""
    rest, tokens = explained["typical_rest_s"], request["output_tokens"]
    later = "" if rest is None or not tokens or tokens < 2 else f", TPOT {duration(rest / (tokens - 1))}"
    this_one = f"this one {duration(request['ttft_s'])}, TPOT {tpot(request)}"
    usual = f"TTFT {duration(explained['typical_ttft_s'])}{later}"
    return f"Typical of its model and class in the hour before: {usual} ({this_one})."
