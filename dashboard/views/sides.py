"""The pickers of Compare: what A and B are. The URL holds it as the API takes it: `a.variant`, `b.start`, `at`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

import streamlit as st

from dashboard import address
from dashboard.api import ask, fetch_seldom
from dashboard.filters import LABELS, View
from dashboard.times import written
from dashboard.transform import Json
from tokentrail.shared.connection import OTHER_FORM
from tokentrail.shared.formatting import instant

TIMES = {
    "the time before it": None,
    "the same time a day before": timedelta(days=1),
    "a week before": timedelta(days=7),
}
"""By its name, how long before the range A is; None: by the length of the range."""
VALUES = LABELS
"""What the sides may be values of."""
SPANS = ("15m", "1h", "6h", "24h")
NAMES = (
    *(f"{side}.{name}" for side in "ab" for name in (*VALUES, "start", "end")), "at", "span",
)  # fmt: skip
"""Parameters that say what the sides are."""
BY = {
    **{label: label.replace("_", " ") for label in LABELS},
    "instance": "process",
    "time": "time",
    "change": "before and after a change",
}
_CHANGE = "by-change"


def pick(view: View) -> dict[str, str]:
    """Draw the pickers. Returns the parameters of `/compare` that say what A and B are; none while one is missing."""
    values, changes = offered(view)
    given = {name: value for name in NAMES if (value := address.get(name))}
    by = compared_by(given) or st.session_state.get("compare by") or first_choice(values, changes)
    if not given:
        given = suggested(by, view, values, changes)
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="sides"):
        st.session_state["by"] = by
        st.selectbox(
            "Compare by", list(BY), key="by", format_func=BY.__getitem__, width=210, label_visibility="collapsed",
            on_change=_change_by,
        )  # fmt: skip
        if by in VALUES:
            for side in "ab":
                _value(side, by, [one["value"] for one in values.get(by, []) if one["value"]], given)
        elif by == "time":
            _time(view, given)
        else:
            _moment(changes, given, view)
    is_whole = "at" in given or {name[0] for name in given if name[1] == "."} == {"a", "b"}
    if not is_whole:
        st.info(f"Choose an A and a B: this range has fewer than two values of {BY[by]}, or a side is empty.")
    return given if is_whole else {}


def offered(view: View) -> tuple[Mapping[str, Sequence[Json]], Sequence[Json]]:
    """The values of labels in the range and the changes; none while the collector does not answer as it should."""
    labels, changes = (fetch_seldom(ask(path, view.params)) for path in ("labels", "changes"))
    try:
        known = [one for one in changes.get("changes", []) if one["dimension"] != "process"]
        return labels.get("labels", {}), known
    except OTHER_FORM:
        return {}, []


def compared_by(given: Mapping[str, str]) -> str | None:
    """What the sides differ in, of the parameters of a link; None without any."""
    if "at" in given:
        return "change"
    if any(name.endswith((".start", ".end")) for name in given):
        return "time"
    return next((label for label in VALUES for side in "ab" if f"{side}.{label}" in given), None)


def first_choice(values: Mapping[str, Sequence[Json]], changes: Sequence[Json]) -> str:
    """What to compare by where nothing is chosen: variants where there are two, else a change, else time."""
    if len([one for one in values.get("variant", []) if one["value"]]) > 1:
        return "variant"
    return "change" if changes else "time"


def suggested(by: str, view: View, values: Mapping[str, Sequence[Json]], changes: Sequence[Json]) -> dict[str, str]:
    """The sides to begin with: of a label its newest value against the one before, or the two commonest values."""
    if by == "change":
        return {"at": changes[-1]["at"], "span": "1h"} if changes else {}
    if by == "time":
        return times(view, None)
    new = next((one for one in reversed(changes) if one["dimension"] == by and one["before"]), None)
    if new is not None:
        return {f"a.{by}": new["before"][-1], f"b.{by}": new["value"]}
    known = [one["value"] for one in values.get(by, []) if one["value"]][:2]
    return {f"{side}.{by}": value for side, value in zip("ab", known, strict=False)} if len(known) == 2 else {}


def times(view: View, before: timedelta | None) -> dict[str, str]:
    """The range as B, and as A the same length `before`; None: the time that ends where the range begins."""
    try:
        begin, end = instant(view.start), instant(view.end)
    except ValueError:  # the API says what is wrong with it
        return {}
    shift = before or end - begin
    return {
        "a.start": written(begin - shift), "a.end": written(end - shift),
        "b.start": written(begin), "b.end": written(end),
    }  # fmt: skip


def params(view: View, chosen: Mapping[str, str], side: str) -> tuple[tuple[str, str], ...]:
    """The parameters that select the requests of side `a` or `b` alone, as `/compare` takes its own for both."""
    of_side = {name[2:]: value for name, value in chosen.items() if name.startswith(f"{side}.")}
    start, end = of_side.pop("start", view.start), of_side.pop("end", view.end)
    if "at" in chosen:
        span = timedelta(seconds=_SECONDS.get(chosen.get("span", ""), _SECONDS["1h"]))
        at = instant(chosen["at"])
        first, last = (at - span, at) if side == "a" else (at, at + span)
        start, end = written(first), written(last)
    kept = [(name, value) for name, value in view.labels if name not in of_side]
    return (("start", start), ("end", end), *kept, *of_side.items())


_SECONDS = {"15m": 900, "1h": 3600, "6h": 21600, "24h": 86400}


def _choose(**given: str | None) -> None:
    """Make these the sides, and nothing else."""
    address.put(**{**dict.fromkeys(NAMES), **given})


def _change_by() -> None:
    st.session_state["compare by"] = st.session_state["by"]
    _choose()


def _value(side: str, by: str, values: list[str], given: Mapping[str, str]) -> None:
    """The picker of a side's value; another side's stays as it is."""
    name = f"{side}.{by}"
    known = given.get(name)
    st.session_state[f"pick {name}"] = known

    def choose() -> None:
        _choose(**{**given, name: st.session_state[f"pick {name}"]})

    st.selectbox(
        side.upper(), values if known in (*values, None) else [*values, known], index=None, key=f"pick {name}",
        placeholder=f"{side.upper()}: which {BY[by]}?", accept_new_options=True, label_visibility="collapsed",
        width=220, on_change=choose,
    )  # fmt: skip


def _time(view: View, given: Mapping[str, str]) -> None:
    choices = {name: times(view, before) for name, before in TIMES.items()}
    known = next((name for name, sides in choices.items() if sides == dict(given)), None)
    st.session_state["pick time"] = known
    st.caption("B: this range. A:", width="content")
    st.selectbox(
        "A", list(choices), index=None, key="pick time", label_visibility="collapsed", width=240,
        placeholder="times of the link", on_change=lambda: _choose(**choices[st.session_state["pick time"]]),
    )  # fmt: skip


def _moment(changes: Sequence[Json], given: Mapping[str, str], view: View) -> None:
    """The pickers of a change and of the time before and after it."""
    known = {
        one["at"]: f"{instant(one['at']).astimezone(view.zone):%b %d %H:%M} {one['service']}: {one['dimension']} "
        f"{one['value']}"
        for one in reversed(changes)
    }
    if (at := given.get("at")) and at not in known:
        known[at] = at
    st.session_state["pick at"], st.session_state["pick span"] = at, given.get("span", "1h")

    def choose() -> None:
        at = st.session_state["pick at"]
        _choose(at=at, span=st.session_state["pick span"] if at else None)

    st.selectbox(
        "Change", list(known), index=None, key="pick at", format_func=lambda one: known.get(one, one), width=330,
        placeholder="no model or variant is new in this range", label_visibility="collapsed", on_change=choose,
    )  # fmt: skip
    st.selectbox("Before and after", SPANS, key="pick span", width=110, label_visibility="collapsed", on_change=choose)
