"""Tells from its rows which abilities an engine has, and the ways to the missing ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict

from collector.ask.times import SECOND_NS
from collector.base.answer import Answer
from collector.base.process import Process
from collector.count.reader import Reader

Mark = Literal["full", "partly", "none"]
_OUT_OF = {"tokens": "could_tell", "phases": "could_tell", "itl": "examples"}
"""Abilities of single requests, and the number of those that could have said it. Of the others one row is enough."""
_COUNTED = (
    "requests", "could_tell", "tokens", "phases", "queue", "preemption", "kv", "in_flight", "cold_start",
)  # fmt: skip
"""Columns of the queries `engine_*`."""
_EXAMPLES = 20
_MINUTE_NS = 60 * SECOND_NS
_MOST_MINUTES = 24 * 60


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Connection(_Strict):
    """One way to connect a product, and the abilities that it has then."""

    name: str
    engine: str
    page: str
    way: str
    held_by: str
    """The recordings (of spans + of scrapes), or the folder of tests, that hold the marks."""
    misses: str = ""
    """The requests that never become rows, and why."""
    tells: dict[str, Mark]


class Abilities(_Strict):
    """The file abilities.yaml."""

    abilities: dict[str, str]
    never: dict[str, str]
    connections: tuple[Connection, ...]


class Told(Answer):
    """One thing that an engine tells or does not tell in a window."""

    what: str
    """`requests`, `tokens`, `itl`, `phases`, `kv`, `preemption`, `in_flight` or `cold_start`."""
    told: Mark
    """`partly`: of some requests alone, or their number alone."""
    reason: str
    """Why it is not told, or not of all; empty when it is."""
    ways: list[str]
    """How to get it; empty when it is told, or when nothing of this kind offers it."""


@cache
def known() -> Abilities:
    """Read abilities.yaml."""
    text = resources.files(__package__).joinpath("abilities.yaml").read_text(encoding="utf-8")
    return Abilities.model_validate(yaml.safe_load(text))


def counts(reader: Reader, signs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Count the rows of each process that tell a thing. `itl` is counted among some requests: tokens are many."""
    by_process: dict[Process, list[Mapping[str, Any]]] = defaultdict(list)
    for sign in signs:
        by_process[Process.of(sign)].append(sign)
    some = {
        process: [one for sign in found for one in sign.get("examples", ())][-_EXAMPLES:]
        for process, found in by_process.items()
    }
    every = [one for examples in some.values() for one in examples]
    rows = every and reader.queries.rows(
        "requests_with_tokens",
        trace_ids=sorted({trace_id for trace_id, *_ in every}),
        minutes=sorted({60 * minute for *_, start, end in every for minute in _minutes(start, end)}),
    )
    with_tokens = {(row["trace_id_hex"], row["span_id_hex"], row["tenant_hash"]) for row in rows}
    return [
        {name: sum(sign.get(name, 0) for sign in found) for name in _COUNTED}
        | process._asdict()
        | {"examples": len(some[process])}
        | {"itl": sum(tuple(one[:3]) in with_tokens for one in some[process])}
        for process, found in by_process.items()
    ]


def _minutes(start_ns: int, end_ns: int) -> range:
    """The minutes from a request's start to its end, counted since 1970; the last day of a longer one."""
    last = end_ns // _MINUTE_NS
    return range(max(start_ns // _MINUTE_NS, last - _MOST_MINUTES), last + 1)


def told(engine: str, vantage: str, processes: Sequence[Mapping[str, Any]]) -> list[Told]:
    """Return the abilities of an engine, by the counts of its processes."""
    return [_told(what, engine, vantage, processes) for what in known().abilities]


def _told(what: str, engine: str, vantage: str, processes: Sequence[Mapping[str, Any]]) -> Told:
    count, out_of = (sum(process[name] for process in processes) for name in (what, _OUT_OF.get(what, what)))
    mark: Mark = "none" if not count else "full" if count >= out_of else "partly"
    reason = f"{count} of {out_of} requests tell it"
    if what == "in_flight" and not count and any(process.get("running") for process in processes):
        mark, reason = "partly", "their number alone: its metrics do not say which requests they are"
    if what == "phases" and not count and any(process["queue"] for process in processes):
        mark, reason = "partly", "the time in the queue alone"
    if what == "requests" and mark == "full" and not any(process["in_flight"] for process in processes):
        # Without announcements, the rows are those of the engine's own spans.
        misses = [one.misses for one in known().connections if one.engine == engine and one.misses]
        mark, reason = ("partly", "; ".join(dict.fromkeys(misses))) if misses else (mark, reason)
    if mark == "full":
        return Told(what=what, told=mark, reason="", ways=[])
    offers = [c for c in known().connections if c.engine == engine and c.tells[what] != "none"]
    ways = list(dict.fromkeys(connection.way for connection in offers))
    if mark == "none" and offers:
        reason = "nothing of it came in this window"
    elif mark == "none":
        reason = known().never[vantage]
        ways = ["connect the engine behind it too (docs/engines/README.md)"] if vantage == "client" else []
    return Told(what=what, told=mark, reason=reason, ways=ways)
