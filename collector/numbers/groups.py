"""The commonest values of a column, by which an answer tells requests or processes apart, and the others together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from collector.ask.slices import slices
from collector.ask.window import Window
from collector.base.answer import Answer
from collector.base.process import PROCESS, Process
from collector.count import samples
from collector.count.evaluation import open_requests, process_filter
from collector.count.population import read_ended
from collector.count.reader import Reader
from collector.slo.cells import Cells
from collector.slo.judge import column_of, selected
from collector.sql.fragment import Fragment, negated
from tokentrail.shared.parameters import Dimension

GroupColumn = Literal["model", "tenant", "variant", "engine", "slo_class", "vantage", "instance"]
"""The columns of `Dimension`, and the engine process."""
assert set(get_args(GroupColumn)) == {*get_args(Dimension), "instance"}
_IS_ONE: Final = f"({', '.join(Process._fields)}) IN {{group_processes:Array(Tuple(String, String, String))}}"


class Value(Answer):
    """The requests with one value of the column that `group_by` names."""

    value: str | None
    """Empty: requests without one. Null: those with the values that have no group of their own, together."""
    service: str | None
    """Of an `instance`, as the next one: two services, or two tenants, may have processes of one name."""
    process_tenant: str | None


@dataclass(frozen=True)
class Group:
    """One value, or all others, and the rows that have it."""

    names: Mapping[str, Any]
    """The fields of `Value`."""
    has: Fragment
    """SQL: the row has it."""


@dataclass(frozen=True)
class Groups:
    """The values with the most requests first, then the others together, if there are any; and how many values."""

    groups: Sequence[Group]
    total: int


def groups_of(reader: Reader, window: Window, column: str, most: int, *, of_processes: bool = False) -> Groups:
    """The groups of a window's requests. `of_processes`: of the processes that tell of themselves in it."""
    sizes = _requests(reader, window, column)
    if of_processes:
        sizes = Counter({process: sizes[process] for process in _processes(reader, window)})
    listed = sorted(sizes, key=lambda value: (-sizes[value], value))[:most]
    groups = [Group(_names(value), _having(column, [value])) for value in listed]
    if len(sizes) > most:
        groups.append(Group(_names(None), negated(_having(column, listed))))
    return Groups(groups, len(sizes))


def _requests(reader: Reader, window: Window, column: str) -> Counter[str | Process]:
    """How many requests have each value, of those that ended and those that have not."""
    key = column_of(PROCESS if column == "instance" else column, "group_by")
    parts = slices([window.end_ns, window.start_ns])
    ended = read_ended(reader.queries, window.filter, Cells(()), parts, group=key)
    sizes: Counter[str | Process] = Counter()
    for value, n in zip(ended.group.tolist(), ended.n.tolist(), strict=True):
        sizes[Process.of_joined(value) if column == "instance" else value] += n
    in_flight = open_requests(reader, window)
    sizes.update(in_flight.processes if column == "instance" else in_flight.values(column))
    return sizes


def _processes(reader: Reader, window: Window) -> list[Process]:
    """The processes with steps, KV events or samples in the window."""
    rows = reader.queries.rows("newest_steps", {"process_filter": process_filter(window)}, **window.bounds)
    return list(dict.fromkeys([*map(Process.of, rows), *(one.process for one in samples.sampled(reader, window))]))


def _names(value: str | Process | None) -> dict[str, Any]:
    if isinstance(value, Process):
        return {"value": value.instance, "service": value.service, "process_tenant": value.process_tenant}
    return {"value": value, "service": None, "process_tenant": None}


def _having(column: str, values: Sequence[str | Process]) -> Fragment:
    if column == "instance":
        return Fragment(_IS_ONE, {"group_processes": [*values]})
    return selected({column: [str(value) for value in values]}, "group")
