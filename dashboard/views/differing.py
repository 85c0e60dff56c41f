"""What is different about some requests: conditions that are commoner among them, each with its two shares as bars."""

from __future__ import annotations

import html

import streamlit as st

from dashboard import address, components, filters, palette
from dashboard.api import Problem
from dashboard.transform import Json
from tokentrail.shared import query
from tokentrail.shared.formatting import count, counted, one_line, percent, plain, significant
from tokentrail.shared.parameters import NOT

MOST = 10
BEYOND = 3
"""Conditions of which `also` names so many."""


def draw(found: Json | Problem, others: str) -> None:
    """Draw the differences. `others` are the requests that the selected ones are compared with, in words."""
    if isinstance(found, Problem):
        components.problem(found)
        return
    st.markdown(
        f"**What is different about them** · share among {count(found['selected'])} selected (red) and among {others} "
        f"({count(found['others'])}, grey)"
    )
    if not found["selected"]:
        st.caption("No request is selected, so there is nothing to compare.")
        return
    if not found["differences"]:
        st.caption(f"None of the recorded dimensions differs from {others} by more than chance.")
    if found["not_asked"]:
        st.caption(f"Not compared in so long a time: {', '.join(map(spoken, found['not_asked']))}.")
    for number, one in enumerate(found["differences"][:MOST]):
        key = f"difference-{number}"
        with st.container(horizontal=True, wrap=False, vertical_alignment="center", gap="xxsmall", key=key):
            st.html(row(one), width="stretch")
            _buttons(one, number)


def row(one: Json) -> str:
    """One difference as HTML: its condition, two bars, the shares and how many times commoner it is."""
    name = " and ".join(words(condition) for condition in one["conditions"])
    also = one["also"][:BEYOND]
    more = f" and {len(one['also']) - BEYOND} more" if len(one["also"]) > BEYOND else ""
    behind = f"<small>also: {html.escape(one_line(', '.join(also)))}{more}</small>" if also else ""
    lift = "only here" if one["lift"] is None else f"{significant(one['lift'], 2)} ×"
    bars = "".join(
        f'<i style="width:{max(100 * one[side]["share"], 0.3):.1f}%;background:{colour}"></i>'
        for side, colour in (("selected", palette.SELECTED), ("others", palette.QUIET))
    )
    shares = f"{percent(one['selected']['share'])} / {percent(one['others']['share'])}"
    return (
        f'<div class="tt-difference"><span>{html.escape(one_line(name))}{behind}</span><span>{bars}</span>'
        f"<span>{shares}<small>{lift}</small></span></div>"
    )


def words(condition: Json) -> str:
    """A condition: `variant = v2.4`, `input tokens at least 3 718`."""
    name, value = spoken(condition["dimension"]), condition["value"]
    is_bound = value.startswith(("at least ", "less than ", "not known"))
    return f"{name} {value}" if is_bound else f"{name} = {value or '(none)'}"


def spoken(dimension: str) -> str:
    """Its name in words: `KV usage at arrival`."""
    return dimension.replace("_", " ").replace("kv ", "KV ")


PREFERRED = ("variant", "model", "tenant", "engine", "slo_class", "vantage")
"""Labels by which every page filters, the most telling first."""


LENGTHS = ("min_input_tokens", "max_input_tokens")
"""Parameters of the URL and the API: bounds of the prompts' lengths, by which Explore filters."""


def is_usable(condition: Json) -> bool:
    """Every page can filter by it, or Explore by the length of prompts."""
    dimension = condition["dimension"]
    return query.is_filter(dimension) or bool(length(condition))


def length(condition: Json, *, leave_out: bool = False) -> dict[str, int]:
    """A bound of the prompts' length as a parameter: `at least 3 718` is {"min_input_tokens": 3718}; empty: it is none.

    `leave_out`: of the other prompts.
    """
    word, _, bound = condition["value"].rpartition(" ")
    if condition["dimension"] != "input_tokens" or word not in ("at least", "less than"):
        return {}
    n = int("".join(filter(str.isdigit, bound)))
    return {LENGTHS[0]: n} if (word == "at least") is not leave_out else {LENGTHS[1]: n - 1}


def chosen_lengths() -> tuple[tuple[str, str], ...]:
    """The bounds of the prompts' length in the URL."""
    return tuple((name, str(round(bound))) for name in LENGTHS if (bound := address.number(name)) is not None)


def chips() -> None:
    """A button for each bound of the prompts' length; a click removes it."""
    for name, bound in chosen_lengths():
        st.button(
            f"prompts {'≥' if name == LENGTHS[0] else '≤'} {counted(int(bound), 'token')}",
            icon=":material/close:",
            icon_position="right",
            key=f"chip-{name}",
            type="tertiary",
            on_click=_drop,
            args=(name,),
        )


def _drop(name: str) -> None:
    address.put(**{name: None})


def usable(one: Json) -> list[Json]:
    """The conditions by which every page can filter; without any, a value that goes with them: the most telling one.

    `also` has it as text: `variant v2.4`.
    """
    filterable = [condition for condition in one["conditions"] if is_usable(condition)]
    if filterable:
        return filterable
    known = dict(text.split(" ", 1) for text in reversed(one["also"]) if " " in text and " and " not in text)
    label = next((label for label in PREFERRED if label in known), None)
    return [] if label is None else [{"dimension": label, "value": known[label]}]


def _buttons(one: Json, number: int) -> None:
    """Buttons that keep the requests with a condition, or leave them out."""
    kept = usable(one)
    name = " and ".join(words(condition) for condition in kept)
    value = "" if kept and kept[0] in one["conditions"] else f" {kept[0]['value']}" if kept else ""
    for sign, label in (("", "is"), (NOT, "is not")):
        if not kept or (sign and len(kept) > 1):
            continue  # leaving out one and then the other is not leaving out both together
        if st.button(
            plain(f"{label}{value}"),
            key=f"{'leave-out' if sign else 'keep'}-{number}",
            type="tertiary",
            help=plain(f"Only requests: {name}" if not sign else f"Without requests: {name}"),
        ):
            for condition in kept:
                if bounds := length(condition, leave_out=bool(sign)):
                    address.put(**bounds)
                else:
                    filters.add(f"{sign}{condition['dimension']}", condition["value"])
            st.rerun()
