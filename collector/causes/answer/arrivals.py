"""Requests with what they met when they came, and which cause took more of their time than usual.

rows       the requests with three more columns: the batch and KV use of their process, and for how long it was idle
cause      SQL of the cause that took the most beyond the middle request: of its TTFT, and for each later token
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from collector.ask.template import part
from collector.ask.window import Window
from collector.causes.split.names import PARTS, load_causes
from collector.count.reader import Reader
from collector.sql.fragment import TRUE, Fragment

MOST_REQUESTS: Final = 100_000
MOST_STEPS: Final = 1_000_000
"""Of a window with more, what requests met is not asked."""
UNKNOWN: Final = "not known"
AT_ARRIVAL: Final = ("batch_at_arrival", "kv_usage_at_arrival", "idle_time")
"""Columns of `rows`. NULL: not known."""


@dataclass(frozen=True)
class Arrivals:
    """Requests with what they met. `edges` are quantiles by the name of the column."""

    rows: Fragment
    edges: Mapping[str, Sequence[float]]
    cause: Fragment


def read_arrivals(reader: Reader, window: Window) -> Arrivals:
    """The requests of a window. A caller of one tenant is told of that tenant's own processes: the others serve all."""
    groups: dict[str, list[str]] = {}
    for name in PARTS:
        if name != "unexplained":
            groups.setdefault(load_causes()[name].group, []).append(name)
    first, rest = (Fragment(f"[{', '.join(_sum(of, names) for names in groups.values())}]") for of in ("ttft", "rest"))
    fragments = {"filter": window.filter, "own": own_processes(reader), "first": first, "rest": rest}
    rows = part("requests_as_they_came", fragments)
    row = reader.queries.row("differences_arrival", {"rows": rows, "filter": window.filter}, **window.bounds)
    return Arrivals(rows, {name: row[f"of_{name}"] for name in AT_ARRIVAL}, _cause(row, [*groups]))


def own_processes(reader: Reader) -> Fragment:
    """Select the rows of the caller's own processes; a caller of all tenants has all."""
    own = Fragment("process_tenant = {own_tenant:String}", {"own_tenant": reader.tenant})
    return own if reader.tenant else TRUE


def _sum(of: str, causes: Sequence[str]) -> str:
    return " + ".join(f"toUInt64({of}_{name}_us)" for name in causes)


def _cause(row: Mapping[str, Any], groups: Sequence[str]) -> Fragment:
    usual = {f"usual_{of}": [float(us) for us in row[of]] or [0.0] * len(groups) for of in ("first", "rest")}
    beyond = (
        "arrayMap((f, r, m, n) -> f + r - m - n * cause_tokens, cause_first, cause_rest,"
        " {usual_first:Array(Float64)}, {usual_rest:Array(Float64)})"
    )
    largest = f"arrayMax({beyond})"
    named = f"{{cause_names:Array(String)}}[indexOf({beyond}, {largest})]"
    sql = f"multiIf(NOT is_explained, '{UNKNOWN}', {largest} <= 0, 'none', {named})"
    return Fragment(sql, {**usual, "cause_names": groups})
