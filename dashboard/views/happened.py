"""The sentence of the moment, the boxes of what fires, and what happened in the range: from `/verdict`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import streamlit as st

from dashboard import address, filters
from dashboard.filters import View
from dashboard.links import from_ns, hour, of_answer, text
from dashboard.transform import Json
from tokentrail.shared.formatting import count, instant, on_clock, plain

STATES = {
    "broken": ("bad", "not kept"), "spent": ("warn", "budget spent"), "danger": ("warn", "in danger"),
    "kept": ("good", "kept"), "not_judged": ("quiet", "not judged"), "quiet": ("quiet", "no requests"),
}  # fmt: skip
"""By state of the verdict: its look, and the word for who sees no colours."""
KINDS = {
    "engine_lost": "lost", "engine_hung": "hang", "kv_eviction": "KV storm", "kv_wait": "waits for KV",
    "cold_start": "cold start", "change": "change", "slo_burn": "burn", "process": "new process",
}  # fmt: skip
"""Short names of kinds of boxes; of others their own."""
LOOKS = {"page": "bad", "ticket": "warn", "info": "quiet"}
"""By severity, the most urgent first."""
MOST_IN_VIEW = 4
"""Boxes of what fires that are drawn; the others are one click away, since four hundred would be 45,000 pixels."""
MOST_DRAWN = 30
MOST_HAPPENED = 9
_SOON_NS = 900 * 10**9
_NOW = timedelta(minutes=2)
"""A range that ended so long ago is over."""


def verdict(answer: Json, view: View, *, is_old: bool) -> None:
    """The sentence of the moment, with who, why and where to look next, and the boxes of what fires.

    Good news of an old answer are no good news now.
    """
    look, word = STATES.get(answer["state"], ("quiet", answer["state"]))
    if look == "good" and (is_old or answer["firing_outside"]):
        look = "quiet"
    past = is_past(view)
    then = f"At {hour(instant(view.end), view)}: " if past else ""
    dot = f'<span class="tt-dot"></span><span class="tt-said">{text(word)}: </span>'
    lines = [f'<p class="said">{dot}{then}{text(_sentence(answer, answer["last_request_ns"], view=view), 400)}</p>']
    lines += [f"<p>{text(answer['who'], 400)}</p>"] if answer["who"] else []
    why = " ".join(text(answer[name], 400) for name in ("why", "without") if answer[name])
    lines += [f"<p>{why}</p>"] if why else []
    lines += [f"<p>{''.join(of_answer(link, view) for link in answer['links'])}</p>"] if answer["links"] else []
    if n := answer["firing_outside"]:
        lines.append(f"<p>{n} {'incident fires' if n == 1 else 'incidents fire'} outside of these filters.</p>")
    told = f'<div class="tt-verdict {look}{past}" role="status">{"".join(lines)}</div>'
    now = [box for box in answer["boxes"] if fires(box)]
    st.html(told + "".join(box_of(box, view) for box in now[:MOST_IN_VIEW]))
    if rest := now[MOST_IN_VIEW:]:
        with st.expander(f"{count(len(rest))} more"):
            st.html("".join(box_of(box, view) for box in rest[: MOST_DRAWN - MOST_IN_VIEW]))
            if left := rest[MOST_DRAWN - MOST_IN_VIEW :]:
                st.caption(f"Not drawn: {count(len(left))}. `/api/v1/incidents` lists them.")


def odd(answer: Json, view: View) -> None:
    """What is unusual in the range, beyond chance, though no SLO burns for it."""
    lines = [
        f'<div class="in">{text(_sentence(one, view=view), 400)} {text(one["who"], 200)} '
        f"{''.join(of_answer(link, view) for link in one['links'])}</div>"
        for one in answer["odd"]
    ]
    if lines:
        title = "Kept, and odd" if answer["state"] == "kept" else "Odd besides"
        st.html(f'<div class="tt-box quiet"><b>{title}</b>{"".join(lines)}</div>')


def fires(box: Json) -> bool:
    """It goes on, or a burn that it explains does."""
    return bool(box["firing"] or any(one["firing"] for one in box["inside"]))


def look(box: Json) -> str:
    """The look of a box: of what fires most urgently in it."""
    firing = {one["severity"] for one in (box, *box["inside"]) if one["firing"]}
    return next((look for severity, look in LOOKS.items() if severity in firing), "quiet")


def box_of(box: Json, view: View) -> str:
    """One box as HTML; the burns that it explains stand inside."""
    kind = f'<span class="tt-kind">{text(KINDS.get(box["kind"], box["kind"]))}</span>'
    words = f"{kind}<b>{text(box['title'])}</b> · {text(_sentence(box, view=view), 300)} {text(box['why'], 300)}"
    links = "".join(of_answer(link, view) for link in box["links"])
    inside = "".join(
        f'<div class="in"><b>{text(one["title"])}</b> · {_said(one, view)} '
        f"{''.join(of_answer(link, view) for link in one['links'][:1])}</div>"
        for one in box["inside"]
    )
    return f'<div class="tt-box {look(box)}{is_past(view)}">{words} {links}{inside}</div>'


def is_past(view: View) -> str:
    """The class of what fired in a range that is over: red and amber mean now. Empty for a range that ends now."""
    return " past" if address.moment() - instant(view.end) > _NOW else ""


def _said(box: Json, view: View) -> str:
    """What a box says below its title; a phone shows why alone."""
    return f'<span class="tt-more">{text(_sentence(box, view=view), 300)}</span> {text(box["why"], 300)}'


def _sentence(of: Json, *more_ns: int | None, view: View) -> str:
    """The sentence of an answer or a box, with its times on the reader's clock."""
    times = (of["since_ns"], of.get("until_ns"), *more_ns)
    return on_clock(of["sentence"], times, round(instant(view.end).timestamp() * 1e9), view.zone)


def folded(boxes: Sequence[Json]) -> list[Json]:
    """The boxes, without those that another one tells: a new process that had a cold start, the cold starts of a
    deployment for which nobody waited, and waits for KV blocks while a storm took them. Their burns and names stand
    with that one."""
    starts = {box["instance"]: box for box in boxes if box["kind"] == "cold_start"}
    changes = [box for box in boxes if box["kind"] == "change"]
    by_id: dict[int, dict[str, Any]] = {id(box): {**box, "inside": [*box["inside"]], "also": []} for box in boxes}
    for box in boxes:
        of: Json | None = None
        if box["kind"] == "process":
            of = starts.get(box["instance"])
        elif box["kind"] == "cold_start" and not box["requests"]:
            near = (one for one in changes if one["service"] == box["service"])
            of = next((one for one in near if abs(one["since_ns"] - box["since_ns"]) < _SOON_NS), None)
        elif box["kind"] == "kv_wait":
            storms = (one for one in boxes if one["kind"] == "kv_eviction" and one["instance"] == box["instance"])
            of = next((one for one in storms if one["service"] == box["service"] and overlap(one, box)), None)
        if of is not None and not fires(box):
            one = by_id.pop(id(box))
            by_id[id(of)]["inside"] += one["inside"]
            by_id[id(of)]["also"] += [box["title"]] if box["kind"] != "process" else []
    return [*by_id.values()]


def overlap(one: Json, other: Json) -> bool:
    """Both lasted at some moment; without an end, something still lasts."""
    return all(a["until_ns"] is None or b["since_ns"] <= a["until_ns"] for a, b in ((one, other), (other, one)))


def happened(boxes: Sequence[Json], view: View) -> None:
    """Incidents and changes of the range, the newest first, past burns included."""
    st.markdown("**What happened** · the newest first")
    if not boxes:
        st.caption("No incident and no change in this range.")
        return
    ordered = sorted(folded(boxes), key=lambda box: -box["since_ns"])
    st.html(f'<div class="tt-past">{"".join(_past(box, view) for box in ordered[:MOST_HAPPENED])}</div>')
    if rest := ordered[MOST_HAPPENED:]:
        with st.expander(f"{count(len(rest))} earlier"):
            st.html(f'<div class="tt-past">{"".join(_past(box, view) for box in rest)}</div>')


def _past(box: Json, view: View) -> str:
    since = hour(from_ns(box["since_ns"]), view)
    until = "" if box["until_ns"] is None else f" to {from_ns(box['until_ns']).astimezone(view.zone):%H:%M}"
    when = f"{since}{until if not until.endswith(since[-5:]) else ''}"
    titles = [*(one["title"] for one in box["inside"]), *box["also"]]
    inside = "".join(f' <span class="tt-more">· {text(title)}</span>' for title in titles)
    links = "".join(of_answer(link, view) for link in box["links"][:2])
    return (
        f'<span class="when">{when}</span> <span class="{look(box)}"><span class="tt-kind">'
        f"{text(KINDS.get(box['kind'], box['kind']))}</span></span> "
        f'<span class="what"><b>{text(box["title"])}</b> '
        f'<span class="tt-more">{text(_rest(box["sentence"]), 240)}</span> {text(box["why"])}{inside} {links}</span>'
    )


def _rest(sentence: str) -> str:
    """A box's sentence without the times, which stand before it: `264 preemptions took 26238 blocks.`"""
    return sentence.partition(". ")[2] if sentence.startswith(("Since ", "From ")) else sentence


def never_seen(verdict: Json, engines: Json) -> bool:
    """Nothing was ever sent: no request, not even one that goes on, and no sign of an engine."""
    nothing = verdict["state"] == "quiet" and verdict["last_request_ns"] is None and not verdict["boxes"]
    return nothing and "engines" in engines and not engines["engines"]


def quiet(answer: Json, view: View) -> None:
    """No request ended in the range: a way to the last one."""
    last_ns = answer["last_request_ns"]
    if last_ns is None:
        return
    last = from_ns(last_ns)
    begin, until = filters.around(last, view)
    st.button(
        f"Jump to the last data ({hour(last, view)})",
        icon=":material/history:",
        key="jump",
        on_click=filters.set_range,
        args=(begin, until),
    )


def lines(engines: Sequence[Json]) -> None:
    """One line for each engine that does not tell something, and how to see it."""
    words = {
        "itl": "ITL", "kv": "KV cache", "preemption": "preemptions", "in_flight": "requests in flight",
        "queue": "queue", "cold_start": "cold starts",
    }  # fmt: skip
    sentences = {}
    for engine in engines:
        missing = [told for told in engine["tells"] if told["told"] == "none"]
        if missing:
            names = ", ".join(words.get(told["what"], told["what"]) for told in missing)
            way = next((told["ways"][0] for told in missing if told["ways"]), "")
            sentences[engine["engine"]] = f"{names}: {engine['engine']} does not tell them here. {way}".rstrip()
    for line in sentences.values():
        st.caption(plain(line))
