"""The processes of Engines as tiles: by service, and the one first that differs most from its siblings."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from os.path import commonprefix
from typing import Final

from dashboard import address
from dashboard.filters import View
from dashboard.links import here, process_id, text
from dashboard.transform import Json
from tokentrail.shared.formatting import count, counted, duration, instant, one_line, percent, significant

STATES: Final[Mapping[str, str]] = {"hangs": "✕ HANGS", "lost": "✕ LOST", "ok": "ok", "quiet": "quiet"}
MOST_WHOLE: Final = 60
"""More processes than these have small tiles, so that 300 fit one screen."""
_SHORT: Final = 12
"""A shared beginning of a name that is no longer than this stays."""
_FADED: Final = 6
"""Characters that stay of a shared beginning that is longer."""
_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def of_services(shown: Sequence[Json], end: str, view: View) -> str:
    """All tiles as HTML. The services stand in the order of their first process."""
    services: dict[tuple[str, str], list[Json]] = {}
    for one in shown:
        services.setdefault((one["service"], one["process_tenant"]), []).append(one)
    is_small = len(shown) > MOST_WHOLE
    drawn = []
    for (service, tenant), processes in services.items():
        name = text(f"{service or 'no service'}{f' of {tenant}' if tenant else ''}")
        compared = any(one["beside"] for one in processes)
        how = ", the time of a step beside their siblings" if compared else ""
        head = f"<h4>{name} <small>{counted(len(processes), 'process', 'processes')}{how}</small></h4>"
        tiles = "".join(
            tile(one, parts, end, is_small=is_small) for one, parts in zip(processes, split(processes), strict=True)
        )
        drawn.append(f'<section>{head}<div class="tt-tiles{" small" if is_small else ""}">{tiles}</div></section>')
    return f'<div class="tt-services">{"".join(drawn)}</div>'


def tile(one: Json, parts: tuple[str, str], end: str, *, is_small: bool) -> str:
    """One process: its name, how much longer its steps take than those of its siblings, and its numbers."""
    beside, state = one["beside"], one["state"]
    trouble = state in ("hangs", "lost")
    look = "bad" if trouble else "warn" if beside and beside["is_slow"] else "quiet"
    faded, rest = (html.escape(one_line(part)) for part in parts)
    lines = [f'<span class="name"><i>{faded}</i>{rest}</span>']
    if trouble:
        ago = f" {since(one['since'], end)}" if one["since"] else ""
        lines.append(f"<b>{STATES[state]}{ago}</b>" + ("" if is_small else f" · {count(one['in_flight'])} open"))
    else:
        told = [f"<b>× {_times(beside['ratio'])}</b>"] if beside else []
        if one["step_p50_s"] is not None:
            told.append(f"{'' if is_small else 'step P50 '}{duration(one['step_p50_s'])}")
        lines.append(" ".join(told) or state)
    if not is_small:
        told = [f"TTFT P99 {duration(one['ttft_p99_s'])}"] if one["ttft_p99_s"] is not None else []
        told += [f"{percent(one['attainment'])} good"] if one["attainment"] is not None else []
        told += [f"KV {percent(one['kv_usage'])}"] if one["kv_usage"] is not None else []
        if state == "quiet":
            told.append(f"quiet {since(one['since'], end)}" if one["since"] else "quiet")
        lines.append(f"<small>{' · '.join(told) or '–'}</small>")
    href = here("engines", sel=process_id(one), at=None)
    chosen = ' aria-current="true"' if process_id(one) == address.get("sel") else ""
    title = html.escape(in_words(one, end), quote=True)
    body = "".join(f"<span>{line}</span>" for line in lines)
    return f'<a class="tt-tile {look}" href="{html.escape(href)}" target="_self" title="{title}"{chosen}>{body}</a>'


def _times(ratio: float) -> str:
    return significant(ratio, 2)


def in_words(one: Json, end: str) -> str:
    """A process for who points at its tile: `sg-0: × 2.7 the step time of its 2 siblings (2.5 to 2.9)`."""
    told = [f"{one_line(one['instance'] or one['service'])}"]
    if one["state"] != "ok":
        told.append(" ".join([STATES[one["state"]], *([since(one["since"], end)] if one["since"] else [])]))
    if one["beside"]:
        told.append(slower(one["beside"]))
    if one["step_p99_s"] is not None:
        told.append(f"step P99 {duration(one['step_p99_s'])}")
    told.append(counted(one["requests"], "request"))
    return one_line(": ".join([told[0], "; ".join(told[1:])]))


def slower(beside: Json) -> str:
    """How a process compares with its siblings: `× 2.7 the step time of its 2 siblings (2.5 to 2.9)`."""
    known = beside["low"] is not None
    how = f"{_times(beside['low'])} to {_times(beside['high'])}" if known else "too few steps to tell chance"
    return f"× {_times(beside['ratio'])} the step time of its {counted(beside['siblings'], 'sibling')} ({how})"


def split(processes: Sequence[Json]) -> list[tuple[str, str]]:
    """Names of one service's processes in two parts: the long beginning that all share, cut, and what tells them apart.

    llama-70b-7f9c-abcde, llama-70b-7f9c-xyz
    ("llama-…", "abcde"), ("llama-…", "xyz")
    """
    instances = [one["instance"] for one in processes]
    shared = commonprefix(instances) if len(instances) > 1 else ""  # noqa: RUF071 - texts, not paths
    begin = len(re.sub(r"[^-_./:]*$", "", shared))
    faded = shared[:begin] if begin <= _SHORT else f"{shared[:_FADED]}…"
    return [(faded, name[begin:]) if name[begin:] else ("", name or one["service"]) for name, one in
            zip(instances, processes, strict=True)]  # fmt: skip


def matching(shown: Sequence[Json], wanted: str) -> list[Json]:
    """The processes whose service, name, variant, model, engine or state has each word of a filter."""
    words = wanted.lower().split()

    def known(one: Json) -> str:
        slow = ["slow"] if one["beside"] and one["beside"]["is_slow"] else []
        names = (one["service"], one["instance"], one["variant"], one["engine"], one["state"], one["process_tenant"])
        return " ".join([*names, *one["models"], *slow]).lower()

    return [one for one in shown if all(word in known(one) for word in words)]


def since(begin: str, end: str) -> str:
    """How long ago something was, in one unit: `9 min`."""
    seconds = max(0.0, (instant(end) - instant(begin)).total_seconds())
    unit, name = next((unit, name) for unit, name in _UNITS if seconds >= unit or unit == 1)
    return f"{seconds // unit:.0f} {name}"
