"""The causes in an answer of `/explain` as rows of text, with who is to blame for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tokentrail.shared.formatting import UNDEFINED, count, duration, one_line, percent

Json = Mapping[str, Any]

LEAST: Final = 0.01
"""Causes with a smaller share say nothing, and are told in one line."""
_LEAST_NAMED: Final = 0.05
"""A culprit with a smaller share is not named."""
_NEARLY_ALL: Final = 0.9
_OF_KV: Final = frozenset({"wait_kv", "preempted", "recompute"})
HELD: Final = _OF_KV | {"wait_batch", "wait_priority", "busy", "batch"}
"""Causes whose tenants had the places or the KV blocks."""
LEVELS: Final = {
    "steps": "step by step",
    "estimated": "by estimates from their phases",
    "phases": "by their phases alone",
    "none": "not at all",
}
_PER_CENT: Final = 100
_KINDS: Final = {"tenant": "tenant ", "variant": "variant ", "process": "", "request": ""}
"""The kinds of culprits that a line has, and the word before a name of each."""


def ordered(answer: Json) -> list[Json]:
    """The groups by their excess, the largest first; by their time where no typical request is known."""
    if is_compared(answer):
        return sorted(answer["groups"], key=lambda one: -(one["excess_s"] or 0.0))
    return sorted(answer["groups"], key=lambda one: -one["time_s"])


def is_compared(answer: Json) -> bool:
    """Whether typical requests are known, so that excess is."""
    return any(one["excess_s"] is not None for one in answer["groups"])


def share_of(answer: Json, group: Json) -> float:
    """Of all excess, or of all time where no typical request is known."""
    if is_compared(answer):
        return float(group["share"] or 0.0)
    return float(group["time_s"] / answer["selected"]["time_s"]) if answer["selected"]["time_s"] else 0.0


def culprits_of(answer: Json, group: Json) -> list[Json]:
    """The culprits of the largest cause of a group that has any."""
    parts = [part for part in answer["parts"] if part["cause"] in group["causes"]]
    parts.sort(key=lambda part: -(part["excess_s"] if part["excess_s"] is not None else part["time_s"]))
    return next((part["culprits"] for part in parts if part["culprits"]), [])


def worst(culprits: Sequence[Json], by: str) -> Json | None:
    """The first culprit of a kind."""
    return next((one for one in culprits if one["by"] == by), None)


def has_most(culprit: Json) -> bool:
    """Whether nearly all of it is of this one."""
    return (culprit["share"] or 0.0) >= _NEARLY_ALL


def what_was_held(group: Json) -> str:
    """What the culprits of a group had meanwhile."""
    if _OF_KV & {*group["causes"]}:
        return "the KV blocks"
    return "the places"


def part_of(culprit: Json) -> str:
    """A culprit's part as a percentage."""
    return UNDEFINED if culprit["share"] is None else f"{_PER_CENT * culprit['share']:.0f} %"


def table(answer: Json) -> list[str]:
    """A row for each cause that says something, the largest first, and one line for the others."""
    known, rows, usual, rest = is_compared(answer), [], [], []
    for group in ordered(answer):
        share = share_of(answer, group)
        time = duration(group["excess_s"] if known else group["time_s"])
        if share >= LEAST:
            worst = count(group["requests"]) if known else ""
            rows.append((group["group"], time, f"{_PER_CENT * share:.0f} %", worst, who(answer, group)))
        elif group["group"] == "unexplained":
            of_all = group["time_s"] / answer["selected"]["time_s"] if answer["selected"]["time_s"] else 0.0
            rest.append(f"unexplained {duration(group['time_s'])} ({percent(of_all)})")
        else:
            usual.append(group["group"])
    heads = ("cause", "beyond typical", "share", "worst for", "who") if known else ("cause", "time", "share", "", "who")
    folded = "; ".join(filter(None, (f"{_folded(known)}: {', '.join(usual)}" if usual else "", *rest)))
    return [*(aligned([heads, *rows]) if rows else []), *([folded] if folded else [])]


def _folded(is_compared: bool) -> str:
    """What the causes are that have no row."""
    return "as usual" if is_compared else "less than 1 % each"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows with columns of one width each, two spaces apart."""
    if not rows:
        return []
    rows = [[one_line(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def who(answer: Json, group: Json) -> str:
    """The worst culprit of each kind, each with its scale."""
    culprits = culprits_of(answer, group)
    tenant, process, request, variant = (worst(culprits, by) for by in ("tenant", "process", "request", "variant"))
    told = [one["text"] for one in answer["slower"][:1] if "slower" in group["causes"]]
    if tenant and tenant["share"] is not None and {*group["causes"]} & HELD:
        meanwhile = "" if group["group"] == "others' answers" else " while they waited"
        told.append(f"tenant {tenant['name']}: {part_of(tenant)} of {what_was_held(group)}{meanwhile}")
        bursts = [one for one in culprits if one.get("within_s") is not None and one is not tenant]
        told += [f"tenant {one['name']}: {part_of(one)}" for one in bursts[:1]]
    elif tenant:
        told.append(f"tenant {tenant['name']}" + (f": {part_of(tenant)} of it" if tenant["share"] is not None else ""))
    if request and (request["share"] or 0.0) >= _LEAST_NAMED:
        told.append(f"{request['name']}: {part_of(request)} of it")
    if (not told or "slower" in group["causes"]) and process:
        told.append(process["name"] if has_most(process) else f"{process['name']}: {part_of(process)} of it")
    if variant:
        told.append(f"variant {variant['name']}: {part_of(variant)} of it")
    return ", ".join(told)


def of_one(detail: Json) -> list[str]:
    """The causes of one request: a row for each that took longer than typical, or any time where none is known."""
    row, explained = detail["request"], detail["explained"]
    head = (
        f"{row['model'] or UNDEFINED} · {row['status']} · TTFT {duration(row['ttft_s'])} · E2E {duration(row['e2e_s'])}"
    )
    told = [f"{head} · trace {row['trace_id']}"]
    if explained is None:
        return [*told, "it has not ended: its causes are told after its end"]
    if explained["level"] is None:
        return [*told, "it is not explained yet: that takes up to two minutes after its end"]
    causes = sorted(
        explained["causes"], key=lambda one: -(one["time_s"] if one["excess_s"] is None else one["excess_s"])
    )
    whole_s = sum(one["time_s"] for one in causes)
    rows: list[tuple[str, ...]] = []
    usual: list[str] = []
    for one in causes:
        is_more = one["excess_s"] is None or one["excess_s"] >= LEAST * whole_s
        if not is_more or one["time_s"] < LEAST * whole_s:
            usual.append(one["cause"])
            continue
        of = "TTFT" if one["of"] == "ttft" else "the rest"
        rows.append(
            (
                one["cause"],
                of,
                duration(one["excess_s"]),
                duration(one["time_s"]),
                _by(one["culprits"], explained["level"]),
            )
        )
    told += aligned([("cause", "of", "beyond typical", "time", "who"), *rows]) if rows else []
    named = {row[0] for row in rows}
    folded = ", ".join(one for one in dict.fromkeys(usual) if one not in named)
    is_compared = any(one["excess_s"] is not None for one in causes)
    told += [f"{_folded(is_compared)}: {folded}"] if folded else []
    return [*map(one_line, told), f"sure: explained {LEVELS[explained['level']]}"]


def _by(culprits: Sequence[Json], level: str) -> str:
    """The worst of each kind, tenants first: a name says more than an id. Below `steps`, the range of its time."""
    first = [worst(culprits, kind) for kind in _KINDS]
    return ", ".join(f"{_KINDS[one['by']]}{one['name']} {_time(one, level)}" for one in first if one)


def _time(culprit: Json, level: str) -> str:
    if level == "steps" or culprit.get("high_s") is None:
        return duration(culprit["time_s"])
    return f"{duration(culprit['low_s'])} to {duration(culprit['high_s'])}"
