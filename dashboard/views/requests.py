"""The list of requests in Explore: fifty rows with what they missed and a bar of their causes. A click opens one."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from datetime import tzinfo
from typing import Any

import streamlit as st

from dashboard import address, bars, components, filters, palette
from dashboard.api import Problem, Query, ask, fetch
from dashboard.components.heat import Selection
from dashboard.filters import View
from dashboard.transform import Json, missed_by
from dashboard.why import PARTS
from tokentrail.shared.formatting import (
    THRESHOLDS,
    UNDEFINED,
    clock,
    count,
    counted,
    duration,
    instant,
    of_tenant,
    plain,
    tpot,
)

SORTS = {**{words: name for name, words in THRESHOLDS.items()}, "newest": "end"}
STATUSES = ("ok", "error", "cancelled", "unknown", "in_flight", "lost")
VERDICTS = ("good", "bad", "undetermined", "excused", "unselected", "pending")
OF_LINKS = ("cause", "cause_start", "cause_end", "process_tenant", "request_id")
"""Filters of the list alone, which links of incidents set."""
CAUSES = {
    "kv_eviction": "lost KV-cache blocks",
    "kv_wait": "waited for KV-cache blocks",
    "cold_start": "waited for a cold start",
}
ROWS = 50
WIDTH, HEIGHT = 96, 23
"""Pixels of a bar with its margin. A table scales an image to the height of a row, and cuts what is wider."""
PHASES = {
    "queue": "queued", "cold_start": "cold_start", "prefill": "prefill", "decode": "decode", "preempted": "preempted",
    "kv_transfer": "kv_transfer", "stalled": "stalled",
}  # fmt: skip
"""The phases of a row by the name of their field, in the order in which they begin."""
BEFORE_TOKEN = ("queue", "cold_start", "prefill")
NAMED = ("estimated", "steps")
"""Levels at which a request's causes are named. Below them, most of its time is unexplained: its phases say more."""
FLOOR = "alone (the floor)"
WAITS = {"batch": "batch full", "tokens": "no tokens left", "kv": "too few KV blocks", "priority": "lower priority"}
PLACE = "requests-place"
"""Key of the session's state: the list that is shown, and the cursor of its page."""


def draw(view: View, chosen: Selection | None, metric: str) -> None:
    """Draw the list of what is selected, the slowest by the map's latency first."""
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="list-head"):
        sort = _choice("Sort by", "sort", tuple(SORTS), next((n for n, m in SORTS.items() if m == metric), "E2E"))
        status = _choice("Status", "status", STATUSES, None, "ended")
        verdict = _choice("Verdict", "verdict", VERDICTS, None, "any verdict")
        of_link = {name: st.query_params[name] for name in OF_LINKS if name in st.query_params}
        for name in of_link:
            _chip(name, view.zone)
    order = SORTS[sort or "E2E"]
    asked = query(view, chosen, metric, {"sort": order, "status": status, "verdict": verdict, **of_link})
    cursor = _cursor(asked)
    answer = fetch(ask("requests", asked.params, cursor=cursor, explained="true"))
    if isinstance(answer, Problem):
        components.problem(answer)
        return
    rows = answer["requests"]
    if not rows:
        st.info(
            "No request matches. A request belongs to the range in which it ended: try a longer one, or fewer filters."
        )
        return
    with st.container(horizontal=True, vertical_alignment="center", key="list-pages"):
        st.caption(f"{count(len(rows))} of {counted(answer['total'], 'request')}. A click opens one.", width="content")
        st.button("First page", disabled=cursor is None, on_click=_go, args=(asked, None), type="tertiary")
        st.button(
            "Next page", disabled=answer["next"] is None, on_click=_go, args=(asked, answer["next"]), type="tertiary"
        )
    shown = components.table(
        table(rows, answer["explained"]),
        height=420,
        placeholder=UNDEFINED,
        column_config=columns(view.zone),
        column_order=ORDER,
        key="requests-table",
        on_select="rerun",
        selection_mode="single-cell",
        row_height=30,
    )
    st.html(legend(rows, answer["explained"]))
    for row, _ in shown.selection.cells[:1]:
        st.switch_page(
            st.session_state["pages"]["request"],
            query_params=filters.of_request(rows[row]["trace_id"], rows[row]["span_id"]),
        )


def query(view: View, chosen: Selection | None, metric: str, more: Mapping[str, str | None]) -> Query:
    """The question for the rows of a selection, or of the whole range. Without latencies for requests that go on."""
    if chosen is None:
        return ask("requests", view.params, slo=view.slo, limit=ROWS, **more)
    begin, end = chosen.times()
    bounds = {} if chosen.failed or more.get("status") in ("in_flight", "lost") else chosen.bounds(metric)
    params = (("start", begin), ("end", end), *view.labels)
    return ask("requests", params, slo=view.slo, limit=ROWS, **bounds, **more)


def _choice(label: str, name: str, options: tuple[str, ...], otherwise: str | None, none: str = "") -> str | None:
    """A box whose value is the URL's parameter `name`."""
    known = address.get(name) if address.get(name) in options else otherwise
    st.session_state[f"pick-{name}"] = known
    return st.selectbox(
        label,
        options,
        index=None,
        placeholder=none,
        key=f"pick-{name}",
        label_visibility="collapsed",
        width=130,
        on_change=_chosen,
        args=(name,),
    )


def _chosen(name: str) -> None:
    address.put(**{name: st.session_state[f"pick-{name}"]})


def _chip(name: str, zone: tzinfo) -> None:
    """A filter of the list that a link has set; a click removes it."""
    value = st.query_params[name]
    if name == "cause":
        text = f"only those that {CAUSES.get(value, value)}"
    else:
        text = f"{name.replace('_', ' ')}: {_when(value, zone) if name.startswith('cause_') else value or 'all'}"
    st.button(
        plain(text), icon=":material/close:", icon_position="right", key=f"chip-{name}", type="tertiary",
        on_click=_drop, args=(name,),
    )  # fmt: skip


def _drop(name: str) -> None:
    address.put(**{name: None})


def _when(text: str, zone: tzinfo) -> str:
    """A link's time on the reader's clock; unix seconds and relative times as they are."""
    try:
        return clock(text, zone)
    except ValueError:
        return text


def _cursor(shown: Query) -> str | None:
    """The cursor of the page that is shown; another list begins at its first page."""
    of, cursor = st.session_state.get(PLACE, (None, None))
    return cursor if of == shown else None


def _go(shown: Query, cursor: str | None) -> None:
    st.session_state[PLACE] = (shown, cursor)


ORDER = (
    "ended", "TTFT", "TPOT", "E2E", "time", "mostly", "missed", "prompt", "output", "model", "variant", "tenant",
    "instance", "status", "verdict",
)  # fmt: skip
"""The columns that are shown at first; the table's menu has the others."""


def table(rows: Sequence[Json], explained: Sequence[Json | None]) -> list[dict[str, Any]]:
    """Request rows, and of each its causes, as rows of the table."""
    return [
        {
            "ended": instant(row["end"]),
            "TTFT": duration(row["ttft_s"]),
            "TPOT": tpot(row),
            "E2E": duration(row["e2e_s"]),
            "missed": missed_by(row["verdicts"]),
            "mostly": mostly(row, told),
            "time": bar(parts(row, told)),
            "prompt": row["input_tokens"],
            "output": row["output_tokens"],
            "model": row["model"],
            "variant": row["variant"],
            "tenant": row["tenant"],
            "instance": row["instance"],
            "status": f"{row['status']} {row['error_type']}".rstrip(),  # an error may be of the type `ok`
            "verdict": row["verdict"],
            **{name.replace("_", " "): duration(row.get(f"{field}_s")) for field, name in PHASES.items()},
            "cached": row["cached_tokens"],
            "preemptions": row["preemptions"],
            "class": row["slo_class"],
            "vantage": row["vantage"],
            "service": of_tenant(row["service"] or row["engine"], row),
            "request id": row["request_id"],
            "trace id": row["trace_id"],
        }
        for row, told in zip(rows, explained, strict=True)
    ]


def _worst(row: Json) -> str:
    """The missed threshold that was exceeded most times over; `e2e` where none was missed."""
    missed = [miss for verdict in row["verdicts"] for miss in verdict["missed"]]
    worst = max(missed, key=lambda miss: miss["over_s"] / miss["limit_s"], default={"threshold": "e2e"})
    return str(worst["threshold"])


def mostly(row: Json, told: Json | None) -> str | None:
    """The cause that took most of the latency that was missed: `others' prompts 4.00 s`.

    What a token takes alone is the cause of no miss, unless nothing else took time. Where no causes are named, it is
    the longest phase, which is marked as one: `phase queued 5.57 min (batch full)`.
    """
    if told is None or told["level"] not in NAMED:
        phase = longest(row)
        return phase and f"phase {phase}"
    worst = _worst(row)
    took = {cause["group"]: sum(cause[f"{part}_s"] for part in PARTS[worst]) for cause in told["causes"]}
    blamed = {group: seconds for group, seconds in took.items() if seconds and group != FLOOR} or took
    most = max(blamed, key=lambda group: blamed[group], default=None)
    return most and f"{most} {duration(blamed[most])}"


def longest(row: Json) -> str | None:
    """The phase that took most of the latency that was missed, and why it waited: `queued 5.57 min (batch full)`.

    TTFT is made of the phases before the first token, TPOT and the longest gap of those after it, and E2E of all. None:
    nobody tells the phases.
    """
    asked = PARTS[_worst(row)]
    names = [name for name in PHASES if ("ttft" if name in BEFORE_TOKEN else "rest") in asked]
    known = {name: row[f"{name}_s"] for name in names if row.get(f"{name}_s")}
    if not known:
        return None
    most = max(known, key=lambda name: known[name])
    reasons = {words: row.get(f"wait_{name}_s") or 0.0 for name, words in WAITS.items()}
    why = max(reasons, key=lambda words: reasons[words])
    told = f" ({why})" if most == "queue" and reasons[why] > known[most] / 2 else ""
    return f"{PHASES[most].replace('_', ' ')} {duration(known[most])}{told}"


Part = tuple[str, str, float]
"""A name, the CSS colour, and seconds."""


def parts(row: Json, told: Json | None) -> list[Part]:
    """What the time of a row is made of: its causes, or its phases where no causes are named."""
    if told is not None and told["level"] in NAMED:
        return [(one["group"], one["colour"], one["ttft_s"] + one["rest_s"]) for one in told["causes"]]
    return [
        (name.replace("_", " "), palette.phase_colour(name), row[f"{field}_s"])
        for field, name in PHASES.items()
        if row.get(f"{field}_s")
    ]


def bar(found: Sequence[Part]) -> str | None:
    """The parts of a time beside each other, as an image; None without parts."""
    total = sum(seconds for *_, seconds in found)
    if not total:
        return None
    at, drawn = 0.0, []
    for _, colour, seconds in found:
        wide = WIDTH * seconds / total
        drawn.append(f'<rect x="{at:.1f}" y="4" width="{wide:.1f}" height="{HEIGHT - 8}" fill="{colour}"/>')
        at += wide
    image = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}">{"".join(drawn)}</svg>'
    return f"data:image/svg+xml;base64,{b64encode(image.encode()).decode()}"


def legend(rows: Sequence[Json], explained: Sequence[Json | None]) -> str:
    """The colours of all bars."""
    names = {name: colour for one in zip(rows, explained, strict=True) for name, colour, _ in parts(*one)}
    return bars.legend({*names}, bars.Palette(names, {}))


def columns(zone: tzinfo) -> dict[str, Any]:
    """Formats of the table's columns."""
    shown: dict[str, Any] = {
        name: st.column_config.TextColumn(alignment="right", width="small") for name in ("TTFT", "TPOT", "E2E")
    }
    shown["ended"] = st.column_config.DatetimeColumn("time", format="MMM D HH:mm:ss", timezone=str(zone), pinned=True)
    shown["time"] = st.column_config.ImageColumn(
        "where it went",
        help="Causes, or phases where no causes are named. The whole bar is the E2E.",
    )
    return shown
