"""The conditions that the Prometheus rules alert on, found in the store with the same thresholds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from collector.ask.window import Window
from collector.base.answer import Answer
from collector.base.process import by_turns
from collector.count.answers import WindowOut
from collector.count.reader import Reader
from collector.incidents.held_up import kv_waits
from collector.incidents.incident import Incident
from collector.incidents.process_incidents import cold_starts, evictions, processes_in_trouble
from collector.incidents.slo_burns import slo_burns
from collector.incidents.top_cause import with_top_causes
from collector.slo.conditions import Cause

_OF_PROCESSES: Final = frozenset({"kv_eviction", "kv_wait", "cold_start"})
"""Causes that are found in rows of engine processes, which have no tenant."""
MOST_OF_A_KIND = 500
"""One answer holds at most so many incidents of a cause: those that fire, then the newest."""


class Incidents(Answer):
    """`/incidents`."""

    window: WindowOut
    incidents: list[Incident]
    """A burn of a tenant's own that is over is found if the tenant has a request in the longest window of its SLO's
    rules, at most three days."""
    firing_outside: int
    """Incidents that fire and that the filters leave out."""
    left_out: dict[Cause, int]
    """By cause, those beyond the 500 that are listed."""


FINDERS: Final[Mapping[Cause, Callable[[Reader, Window], Iterator[Incident]]]] = {
    "slo_burn": slo_burns,
    "engine_lost": processes_in_trouble,
    "engine_hung": processes_in_trouble,
    "kv_eviction": evictions,
    "kv_wait": kv_waits,
    "cold_start": cold_starts,
}
"""The function that finds each cause; one function may find several."""


def incidents(reader: Reader, window: Window) -> Incidents:
    """Incidents of the window: first those that fire at its end, then the others, each newest first."""
    told = WindowOut.of(window, reader.complete_ns)
    selected = _found(reader, window)
    unfiltered = replace(window, filter=reader.tenant_filter)
    everything = selected if window == unfiltered else _found(reader, unfiltered)
    inside = _firing(selected)
    of_all_tenants = {(*key[:-1], None) for key in inside}  # the burn of a tenant is one of the SLO, too
    newest_first = sorted(sorted(selected, key=lambda i: (i.cause, i.title)), key=lambda i: i.start, reverse=True)
    listed, left_out = _most_of_each_cause(sorted(newest_first, key=lambda i: not i.firing))
    outside = _firing(everything) - inside - of_all_tenants
    listed = with_top_causes(reader, window, listed)
    return Incidents(window=told, incidents=listed, firing_outside=len(outside), left_out=left_out)


def _found(reader: Reader, window: Window) -> list[Incident]:
    finders = dict.fromkeys(find for cause, find in FINDERS.items() if not reader.tenant or cause not in _OF_PROCESSES)
    return [incident for find in finders for incident in find(reader, window)]


def _most_of_each_cause(incidents: list[Incident]) -> tuple[list[Incident], dict[Cause, int]]:
    """`MOST_OF_A_KIND` of each cause, in their order, and how many more of it there are. Tenants take turns."""
    seen: Counter[Cause] = Counter()
    left_out = set()
    in_turn = by_turns(incidents, lambda incident: incident.process_tenant or incident.tenant or "")
    for one in sorted(in_turn, key=lambda incident: not incident.firing):
        seen[one.cause] += 1
        if seen[one.cause] > MOST_OF_A_KIND:
            left_out.add(id(one))
    listed = [one for one in incidents if id(one) not in left_out]
    return listed, {cause: n - MOST_OF_A_KIND for cause, n in seen.items() if n > MOST_OF_A_KIND}


def _firing(incidents: list[Incident]) -> set[tuple[str | None, ...]]:
    return {(i.cause, i.slo, i.instance, i.process_tenant, i.tenant) for i in incidents if i.firing}
