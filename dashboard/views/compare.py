"""The page Compare: A against B, by a label, a time or a change, with what chance does not explain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from dashboard import components, curves, forest
from dashboard.api import Problem, Query, ask, ask_ahead, fetch
from dashboard.filters import View, selected
from dashboard.transform import Json
from dashboard.views import sides, variants
from tokentrail.shared.formatting import LATENCIES, MINUS, UNDEFINED, count, duration, percent, plain, rate, significant

QUANTILES = ("p50", "p90", "p99")
COLOURS = ("#64748b", "#8b5cf6")
"""Of A and B."""
LOOKS: dict[str, tuple[str, Any]] = {
    "worse": (":material/trending_down:", st.error),
    "better": (":material/trending_up:", st.success),
    "same": (":material/equal:", st.info),
    "mixed": (":material/shuffle:", st.warning),
    "not decided": (":material/help:", st.warning),
}
DRAWN = tuple(name for name in LATENCIES if name != "itl")
"""Latencies of which the shares are drawn."""
MIX = {"input": "prompt tokens", "cached": "cached tokens", "output": "output tokens"}


def page() -> None:
    """Draw the page. It does not refresh itself: a comparison is of a time that is over, and costs seconds."""
    components.refreshed(body, selected(), every_s=0)


def body(view: View) -> None:
    """Draw the pickers and, of the sides that they choose, the comparison."""
    chosen = sides.pick(view)
    if chosen:
        compared = ask("compare", view.params, **chosen)
        ask_ahead(compared, *(_mapped(view, chosen, side, metric) for metric in DRAWN for side in "ab"))
        answer = fetch(compared)
        if isinstance(answer, Problem):
            components.problem(answer)
        else:
            comparison(answer)
            overlaid(view, chosen, answer)
    variants.draw(view)


def comparison(found: Json) -> None:
    """The verdict, what makes it doubtful, and the table of differences."""
    icon, box = LOOKS.get(found["kind"], LOOKS["not decided"])
    with st.container(key="comparison"):
        box(f"**{plain(found['verdict'])}.**", icon=icon)
        for warning in found["warnings"]:
            st.warning(plain(f"{warning[:1].upper()}{warning[1:]}."), icon=":material/balance:")
        if found["more_requests"]:
            needed = ", ".join(f"{count(n)} of {side.upper()}" for side, n in found["more_requests"].items())
            st.caption(f"A relevant difference of P99 TTFT would show with about so many more requests: {needed}.")
        st.html(forest.drawn(latencies(found), found["relevant"]))
        components.table(
            [*counts(found), *mix(found)],
            placeholder=UNDEFINED,
            height="content",
            column_config={"": st.column_config.TextColumn(pinned=True)},
            key="compared",
        )
        by = ", ".join(found["like_for_like_by"])
        st.caption(
            "Numbers of A and B are as they are. "
            + (f"B ÷ A is like for like by {plain(by)}: " if by else "B ÷ A: ")
            + "a 95 % interval that holds 1 is what chance explains. Rates are over the time in which a side ran."
        )


def latencies(found: Json) -> list[forest.Row]:
    """Rows of percentiles: both sides, the ratio with its interval, and what it says."""
    return [
        forest.Row(
            f"{word} {quantile.upper()}",
            duration(found["a"][f"{name}_s"][quantile]),
            duration(found["b"][f"{name}_s"][quantile]),
            ratio,
            interval(ratio, lambda value: significant(value)),
            says(ratio, found["relevant"]),
        )
        for name, word in LATENCIES.items()
        for quantile in QUANTILES
        for ratio in [found["ratios"].get(name, {}).get(quantile)]
    ]


def says(ratio: Mapping[str, float | None] | None, relevant: float) -> str:
    """What an interval of B ÷ A says of a latency: beyond chance, the same within `relevant`, or not decided."""
    if ratio is None:
        return "nothing to compare"
    low, high = ratio["low"], ratio["high"]
    if low is not None and high is not None and 1 / (1 + relevant) <= low and high <= 1 + relevant:
        return f"the same, within {percent(relevant)}"
    if low is not None and low > 1:
        return "B is slower"
    if high is not None and high < 1:
        return "B is faster"
    return "not decided"


def interval(told: Mapping[str, float | None] | None, text: Any) -> str:
    """An interval: `3.6 to 4.1`; ∞ for a bound that so few requests do not give."""
    if told is None or told["low"] is told["high"] is None:
        return UNDEFINED
    low, high = (("∞" if bound is None else text(bound)) for bound in (told["low"], told["high"]))
    return f"{'0' if told['low'] is None else low} to {high}"


def counts(found: Json) -> list[dict[str, str]]:
    """Rows of attainment, requests and rates."""
    a, b, more = found["a"], found["b"], found["attainment"]
    difference = "" if more is None else points(more["estimate"])
    told = interval(more, points)
    decided = more is not None and more["low"] is not None and more["high"] is not None
    says_so = "not decided" if not decided or more["low"] <= 0 <= more["high"] else (
        "B is better" if more["low"] > 0 else "B is worse"
    )  # fmt: skip
    rows = [
        {
            "": "attainment", "A": percent(a["attainment"]), "B": percent(b["attainment"]), "B ÷ A": difference,
            "95 %": told, "says": "no SLO judges both" if more is None else says_so,
        },
        {"": "requests", "A": count(a["requests"]["total"]), "B": count(b["requests"]["total"])},
        {"": "failed", "A": count(a["requests"]["failed"]), "B": count(b["requests"]["failed"])},
    ]  # fmt: skip
    for name, field in (
        ("requests/s", "requests_per_s"),
        ("output tokens/s", "output_tokens_per_s"),
        ("good requests/s", "goodput_per_s"),
    ):
        rows.append({"": name, "A": rate(a[field], "").strip(), "B": rate(b[field], "").strip()})
    rows.append({"": "running at a time", "A": _number(a["running"]), "B": _number(b["running"])})
    return [dict.fromkeys(("", "A", "B", "B ÷ A", "95 %", "says"), "") | row for row in rows]


def points(share: float) -> str:
    """A difference of shares in hundredths: `22.4 points`, `−3 points`. A spreadsheet takes a plus for a formula."""
    return f"{MINUS if share < 0 else ''}{significant(abs(share) * 100)} points"


def _number(value: float | None) -> str:
    return UNDEFINED if value is None else significant(value, 2)


def mix(found: Json) -> list[dict[str, str]]:
    """Rows of the medians of what makes requests slow by itself."""
    return [
        {
            "": f"{MIX.get(name, name)}, median", "A": count(told["a"]), "B": count(told["b"]), "B ÷ A": "", "95 %": "",
            "says": "another mix" if told["differs"] else "a like mix",
        }
        for name, told in found["mix"].items()
    ]  # fmt: skip


def overlaid(view: View, chosen: Mapping[str, str], found: Json) -> None:
    """The share of requests below each latency, of both sides on one axis."""
    st.subheader("Share of requests below a latency", help="Of those that ended and have this latency, as they are.")
    names = [f"{side.upper()}: {found[side]['name']}" for side in "ab"]
    st.html(curves.legend(names, [found[side]["requests"]["total"] for side in "ab"], COLOURS))
    for column, metric in zip(st.columns(len(DRAWN)), DRAWN, strict=True):
        told = {name: _shares(view, chosen, side, metric) for name, side in zip(names, "ab", strict=True)}
        with column.container(border=True, key=f"ecdf-{metric}"):
            st.markdown(f"**{LATENCIES[metric]}**")
            image = curves.drawn(LATENCIES[metric], told, COLOURS)
            if image:
                st.html(image)
            else:
                st.caption("No request has this latency.")


def _mapped(view: View, chosen: Mapping[str, str], side: str, metric: str) -> Query:
    return ask("heatmap", sides.params(view, chosen, side), metric=metric, columns=1, rows=100)


def _shares(view: View, chosen: Mapping[str, str], side: str, metric: str) -> Sequence[tuple[float, float]]:
    answer = fetch(_mapped(view, chosen, side, metric))
    return [] if isinstance(answer, Problem) else curves.shares(answer)
