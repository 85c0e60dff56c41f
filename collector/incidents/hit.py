"""Who the bad requests of one SLO are, and where their time went, in sentences: from `/differences` and `/explain`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from collector.ask.times import HOUR_NS, SECOND_NS
from collector.ask.window import Window
from collector.causes.answer.answer import Explanation
from collector.causes.answer.explain import explain
from collector.causes.answer.sentence import first_order_holds, without_sentence
from collector.causes.answer.without import Question
from collector.causes.split.names import causes_of
from collector.compare.differences import differences
from collector.compare.telling import Difference, Trait
from collector.count.reader import Reader
from collector.count.verdicts import wanted
from collector.incidents.box import cause_of
from collector.incidents.incident import Incident, TopCause
from collector.incidents.top_cause import MOST_BACK_NS
from collector.incidents.wrong import Wrong, unexplained, what_was_wrong
from collector.slo.judge import selected
from collector.slo.model import Slo
from collector.sql.fragment import Fragment, all_of, any_of
from tokentrail.shared.formatting import WAITS, named, percent
from tokentrail.shared.moments import parse_moment

_MINUTE_NS: Final = 60 * SECOND_NS
_BYTES: Final = 4096
_MOST_REQUESTS: Final = 200_000
"""Of more, those of the last hour are looked at: the answer would come late."""
_REPLAY_S: Final = 2.0
"""Replays of a burn may take so long, once a minute."""
_TIMES_BEFORE: Final = 2
"""The others are the good requests of the same time and of twice as long before: they are as the bad were before."""
_LEAST_SHARE: Final = 0.6
_LEAST_LIFT: Final = 2.0
_MOST_NAMED: Final = 3
_LONGEST_TEXT: Final = 240
"""Characters of what a process says of its requests, the names of others in it included."""
_WORDS: Final = {
    "input_tokens": "have prompts of {} tokens",
    "output_tokens": "have answers of {} tokens",
    "cached_share": "have {} of the prompt cached",
    "cold_start": "waited for a cold start",
    "pictures": "have pictures in the prompt: {}",
    "sound": "have sound in the prompt: {}",
    "status": "ended as {}",
    "error_type": "ended with the error {}",
    "finish_reason": "have finish reason {}",
    "slo_class": "are of SLO class {}",
}
"""What is said of a value. Of other dimensions: `are of model llama`."""


@dataclass(frozen=True)
class Hit:
    """Sentences about the bad requests, or None where nothing is known."""

    who: str | None
    why: str | None
    without: str | None


def hit(reader: Reader, window: Window, vantage: Sequence[str], slo: Slo, burn: Incident, tenant: str | None) -> Hit:
    """The sentences about the requests that are bad for an SLO, or for one tenant of it, since its burn began."""
    of_tenant = () if tenant is None else (selected({"tenant": [tenant]}, "burn"),)
    chosen = replace(window, filter=all_of(window.filter, *of_tenant))
    top = burn.top_cause
    asked = ("hit", slo.hash, burn.start, top and top.cause, repr(chosen.filter), repr(vantage))
    minutes = {("hit", "minute"): (window.end_ns // _MINUTE_NS, reader.now_ns // _MINUTE_NS)}

    def answer() -> Hit:
        question = Question(
            (slo,), without=[] if top is None else [causes_of(top.group)], replay="auto", replay_s=_REPLAY_S
        )
        recent = _recent(reader, chosen, parse_moment(burn.start).ns)
        explanation = explain(reader, recent, vantage, question)
        wrong = what_was_wrong(reader, recent, slo)
        return Hit(_who(reader, recent, slo), _why(top, explanation, wrong), _without(explanation))

    return reader.queries.remembered(asked, [*minutes], answer, lambda _: _BYTES, minutes)


def _recent(reader: Reader, window: Window, since_ns: int) -> Window:
    """The time of a burn that is looked at: as much as its top cause is of, or an hour of very many requests."""
    recent, hour_ns = replace(window, start_ns=max(since_ns, window.end_ns - MOST_BACK_NS)), window.end_ns - HOUR_NS
    if recent.start_ns >= hour_ns:
        return recent
    n = reader.queries.count("requests", "ended_in_window", recent.filter, **recent.bounds)
    return recent if n <= _MOST_REQUESTS else replace(recent, start_ns=hour_ns)


def _who(reader: Reader, recent: Window, slo: Slo) -> str | None:
    before_ns = max(0, recent.start_ns - _TIMES_BEFORE * (recent.end_ns - recent.start_ns))
    longer = replace(recent, start_ns=before_ns)
    bad, good = (wanted(reader, longer, slo, verdict)[0] for verdict in ("bad", "good"))
    bad = all_of(bad, Fragment("end >= fromUnixTimestamp64Nano({hit_ns:Int64})", {"hit_ns": recent.start_ns}))
    differing = differences(reader, longer, bad, any_of(bad, good), whole=False, by_time=False).differences
    clear = [one for one in differing if one.selected.share >= _LEAST_SHARE and _lift(one) >= _LEAST_LIFT]
    told = [_of_share(one, first=i == 0) for i, one in enumerate(clear[:_MOST_NAMED])]
    return f"{', '.join(told)}." if told else None


def _lift(one: Difference) -> float:
    return float("inf") if one.lift is None else one.lift


def _of_share(one: Difference, *, first: bool) -> str:
    what = " and ".join(_words(trait) for trait in one.conditions)
    of = " of the bad requests" if first else ""
    return f"{percent(one.selected.share)}{of} {what} (of the good {percent(one.others.share)})"


def _words(trait: Trait) -> str:
    value = named(trait.value)
    if trait.dimension == "longest_wait" and trait.value in WAITS:
        return f"waited longest because {WAITS[trait.value]}"
    if trait.dimension in _WORDS:
        return _WORDS[trait.dimension].format(value or "none")
    return f"are of {trait.dimension} {value}" if value else f"have no {trait.dimension}"


def _why(top: TopCause | None, explained: Explanation, wrong: Wrong | None) -> str | None:
    """What was wrong, then the burn's top cause, which is that beyond good requests. `/explain` compares with all, of
    which most may be bad.
    """
    told = cause_of(top)
    if told is None and sum(one.bad for one in explained.not_ended) > explained.selected.requests:
        texts = [named(one.text, _LONGEST_TEXT) for one in explained.not_ended if one.bad][:_MOST_NAMED]
        many = "Most of them have not" if explained.selected.requests else "None of them has"
        return f"{many} ended. {'; '.join(texts)}."
    if wrong is None:
        return told
    return wrong.with_levels(told, explained.levels, unexplained(top))


def _without(explained: Explanation) -> str | None:
    """What would be good without all causes of the top one's name, as far as the first order or a replay tells it; else
    without the requests of a culprit."""
    top, replayed = next(iter(explained.without), None), explained.replay.attainment if explained.replay else None
    if top is None or top.attainment is None:
        return None
    if top.kind == "first order" and not first_order_holds(explained.parts):
        return without_sentence(explained.parts, explained.groups, explained.attainment, replayed)
    attainment = replayed if top.kind == "replay" else explained.attainment
    if attainment is None:
        return None
    then, now = percent(top.attainment), percent(attainment)
    by = " (replay)" if top.kind == "replay" else ""
    return None if then == now else f"Without it, {then} since then would be good instead of {now}{by}."
