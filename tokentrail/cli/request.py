"""`tokentrail request`: one request as a waterfall of phases, tokens and events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Console

from tokentrail.cli.output import print_line
from tokentrail.shared.formatting import (
    THRESHOLDS,
    UNDEFINED,
    clock,
    count,
    duration,
    of_tenant,
    prefill_interference,
    tpot,
    wait_reasons,
)

WIDTH: Final = 64
"""Columns of the time axis, where there is room."""
_LEAST_WIDTH: Final = 16
_BESIDE: Final = 31
"""Columns beside the axis: the name, the duration and the share."""
_MOST_CAUSES: Final = 3
_LEVELS: Final = "·▁▂▃▄▅▆▇█"


def show(console: Console, detail: Mapping[str, Any]) -> None:
    """Print the waterfall. Every line holds its numbers too, so nothing depends on the drawing."""
    width = min(WIDTH, max(_LEAST_WIDTH, console.width - _BESIDE))  # a line that the terminal breaks is no drawing
    for text in lines(detail, width):
        print_line(console, text)


def lines(detail: Mapping[str, Any], width: int = WIDTH) -> list[str]:
    """The lines of the waterfall, with a time axis of so many columns."""
    row = detail["request"]
    whole = row["e2e_s"] or max(_known_offsets(detail["tokens"]), default=0.0)
    return [
        *_head(row),
        *_missed(row),
        *_causes(detail),
        "",
        *(_bar(p["name"], p["offset_s"], p["duration_s"], whole, width) for p in detail["phases"]),
        *_tokens(detail["tokens"], whole, width),
        *(_mark(event, whole, width) for event in detail["events"] if event["own"]),
        *_why(detail),
        *(["", "longest waits between tokens:"] if detail["longest_waits"] else []),
        *map(_wait, detail["longest_waits"]),
        *(
            _cut(name, detail)
            for name in ("steps", "events")
            if len(detail[name] or []) < (detail.get(f"{name}_total") or 0)
        ),
    ]


def _cut(name: str, detail: Mapping[str, Any]) -> str:
    return f"{count(len(detail[name]))} of {count(detail[f'{name}_total'])} {name} are known to this command"


def _head(row: Mapping[str, Any]) -> list[str]:
    outcome = " ".join(filter(None, [row["status"], row["error_type"] or row["finish_reason"]]))
    process = of_tenant("/".join(filter(None, [row["service"], row["instance"]])), row)
    latencies = [f"TTFT {duration(row['ttft_s'])}", f"TPOT {tpot(row)}", f"E2E {duration(row['e2e_s'])}"]
    if row["gap_s"] is not None:
        latencies.append(f"longest gap {duration(row['gap_s'])}")
    return [
        f"{row['operation'] or 'request'} {row['model'] or UNDEFINED} · {outcome} · "
        f"{count(row['input_tokens'])} → {count(row['output_tokens'])} tokens · {' · '.join(latencies)}",
        f"{clock(row['start'])} · {row['engine']} {process} · tenant {row['tenant'] or UNDEFINED} · "
        f"class {row['slo_class'] or UNDEFINED} · cached {count(row['cached_tokens'])} · "
        f"preemptions {count(row['preemptions'])}",
        f"trace {row['trace_id']} span {row['span_id']}" + (f" id {row['request_id']}" if row["request_id"] else ""),
        *([" · ".join(f"{name} {value}" for name, value in row["labels"].items())] if row["labels"] else []),
    ]


def _missed(row: Mapping[str, Any]) -> list[str]:
    """A line for each threshold that was missed: the promise, and by how much."""
    return [
        f"bad for {verdict['slo']}: {THRESHOLDS[miss['threshold']]} {duration(miss['value_s'])}, "
        f"{duration(miss['limit_s'])} promised: {duration(miss['over_s'])} over"
        for verdict in row["verdicts"]
        for miss in verdict["missed"]
    ]


def _causes(detail: Mapping[str, Any]) -> list[str]:
    """The largest causes of the time before the first token and after it, with the time beyond typical requests."""
    sentences = []
    for of, title in (("ttft", "before the first token"), ("rest", "after it")):
        causes = [one for one in (detail["explained"] or {"causes": []})["causes"] if one["of"] == of]
        told = [_cause(one) for one in causes[:_MOST_CAUSES] if one["time_s"]]
        sentences += [f"{title}: {', '.join(told)}"] if told else []
    return sentences


def _cause(cause: Mapping[str, Any]) -> str:
    beyond = cause["excess_s"]
    more = f" ({duration(beyond)} beyond typical)" if beyond is not None and beyond > 0 else ""
    return f"{cause['cause']} {duration(cause['time_s'])}{more}"


def _bar(name: str, offset_s: float, duration_s: float, whole_s: float, width: int) -> str:
    """A phase from its first to its last column; one that is shorter than a column takes one."""
    first = _column(offset_s, whole_s, width)
    last = max(first + 1, round((offset_s + duration_s) / whole_s * width)) if whole_s else first + 1
    drawn = " " * first + "█" * (min(last, width) - first)
    share = f"{duration_s / whole_s * 100:5.1f} %" if whole_s else ""
    return f"{name:<12} {drawn:<{width}} {duration(duration_s):>9} {share}"


def _tokens(tokens: Sequence[Mapping[str, Any]], whole_s: float, width: int) -> list[str]:
    """How many tokens were emitted in each column, as heights of at most eight."""
    if not tokens or not whole_s:
        return []
    counts = [0] * width
    for offset_s in _known_offsets(tokens):
        counts[_column(offset_s, whole_s, width)] += 1
    most = max(counts) or 1
    drawn = "".join(_LEVELS[-(-n * (len(_LEVELS) - 1) // most)] for n in counts)
    return [f"{'tokens':<12} {drawn} {len(tokens):>9}"]


def _known_offsets(tokens: Sequence[Mapping[str, Any]]) -> list[float]:
    """When the tokens were emitted, of those of which that is known."""
    return [token["offset_s"] for token in tokens if token["offset_s"] is not None]


def _mark(event: Mapping[str, Any], whole_s: float, width: int) -> str:
    details = [event["reason"], f"{event['blocks']} blocks" if event["blocks"] is not None else ""]
    drawn = " " * _column(event["offset_s"], whole_s, width) + "▲"
    return f"{event['kind']:<12} {drawn:<{width}} {duration(event['duration_s']):>9} {' '.join(filter(None, details))}"


def _why(detail: Mapping[str, Any]) -> list[str]:
    """Why it waited, as far as the engine tells it. Causes that are found step by step tell it more exactly: to a
    scheduler, a slow device is a full batch."""
    is_told = (detail["explained"] or {}).get("level") == "steps"
    reasons = f"Why it waited: {wait_reasons(detail)}" if detail["waits"] and not is_told else ""
    sentences = [sentence for sentence in (reasons, prefill_interference(detail)) if sentence]
    return ["", *sentences] if sentences else []


def _wait(wait: Mapping[str, Any]) -> str:
    """One of the longest waits, and the engine's work in the step that ended it."""
    waited, at = duration(wait["duration_s"]), duration(wait["offset_s"])
    text = f"{waited:>11} before token {wait['index']}, {at} after the start"
    if wait["phase"]:
        text += f", in {wait['phase']}"
    if wait["step"] is not None:
        text += f", step {wait['step']}"
    if wait["prefill_tokens"]:
        text += f" with {count(wait['prefill_tokens'])} prefill tokens"
    return text if wait["running"] is None else f"{text}, {count(wait['running'])} running"


def _column(offset_s: float, whole_s: float, width: int) -> int:
    return min(width - 1, max(0, int(offset_s / whole_s * width))) if whole_s else 0
