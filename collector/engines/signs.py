"""The work of engine processes in a window: requests, steps, announcements and cold starts, by process."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any, Final

from collector.ask.slices import slices
from collector.ask.window import Window
from collector.base.process import Process
from collector.count.evaluation import process_filter
from collector.count.reader import Reader

_MOST_NAMES: Final = 100


def signs_of_life(reader: Reader, window: Window) -> list[dict[str, Any]]:
    """Rows of the queries `engine_*`: few for each process, with its names. Whole days' answers are remembered."""
    of_process = process_filter(window)
    by_day = (("engine_requests", window.filter, "requests", "end"), ("engine_steps", of_process, "steps", "start"))
    signs = []
    for query, matching, table, column in by_day:
        for one in slices([window.end_ns, window.start_ns], table, column):
            columns = one.columns(reader.queries, query, {}, matching)
            signs += [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    signs += reader.queries.rows("engine_announcements", {"filter": window.filter}, **window.bounds)
    return signs + reader.queries.rows("engine_cold_starts", {"process_filter": of_process}, **window.bounds)


def processes_of(signs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The processes that gave a sign of life, the latest first."""
    by_process: dict[Process, list[dict[str, Any]]] = defaultdict(list)
    for sign in signs:
        if sign.get("listed", True):
            by_process[Process.of(sign)].append(sign)

    def most(found: list[dict[str, Any]], name: str) -> str:
        """What most requests say; the first by alphabet of several."""
        requests: Counter[str] = Counter()
        for sign in found:
            requests[sign.get(name) or ""] += sign.get("n", 0)
        return max(sorted(requests.keys() - {""}), key=requests.__getitem__, default="")

    def names(found: list[dict[str, Any]], name: str) -> list[str]:
        return sorted({one for sign in found for one in sign.get(name, ()) if one})[:_MOST_NAMES]

    processes = [
        {
            **process._asdict(),
            "engine": most(found, "engine"),
            "vantage": most(found, "vantage"),
            "variant": max(found, key=lambda sign: sign["last_ns"])["variant_now"],
            "variants": names(found, "variants"),
            "models": names(found, "models"),
            "first_seen_ns": min(sign["first_ns"] for sign in found),
            "last_seen_ns": max(sign["last_ns"] for sign in found),
            "requests": round(sum(sign.get("n", 0) for sign in found)),
        }
        for process, found in by_process.items()
    ]
    return sorted(processes, key=lambda one: (-one["last_seen_ns"], Process.of(one)))
