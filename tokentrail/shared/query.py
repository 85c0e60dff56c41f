"""A question's parameters as one line of text, the same on pages, in links, as an argument of commands and of tools.

tenant:globex -model:llama ttft>2s 14:00-15:00 slo:chat

tenant:globex, label.region:eu    a filter; the same name again: or this value. `-` before it: no such requests
ttft>2s, e2e<500ms                a latency of so much or more, or so much or less; `>=` and `<=` say the same
input_tokens>4000                 so many prompt tokens or more
slo:chat, verdict:bad, sort:ttft  other parameters that take one value
14:00, -1h, 2026-11-21            since this time of day, for this long, on this day
14:00-15:00, START/END            from a time to another, with a day before it also on that day
tenant:"a b"                      a value with spaces or quotes, as JSON has it; `tenant:""`: without one
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import date, timedelta
from typing import Any, Final, get_args

from tokentrail.shared.durations import parse_duration
from tokentrail.shared.moments import needs_zone, parse_moment
from tokentrail.shared.parameters import (
    FILTERS,
    LABEL,
    NOT,
    Cause,
    Latency,
    Sort,
    Status,
    Threshold,
    Verdict,
    did_you_mean,
)

_ONE_OF: Final[Mapping[str, Any]] = {
    "verdict": Verdict, "status": Status, "missed": Threshold, "cause": Cause, "sort": Sort, "metric": Latency,
}  # fmt: skip
_CHECKED: Final[Mapping[str, Callable[[str], object]]] = {
    "slo": str, "process_tenant": str, "request_id": str,
    **dict.fromkeys(("start", "end", "cause_start", "cause_end"), parse_moment),
}  # fmt: skip
_LENGTH: Final = "input_tokens"
_LATENCIES: Final = get_args(Latency)
_LABEL_NAME: Final = re.compile(rf"{re.escape(LABEL)}[A-Za-z][A-Za-z0-9_.-]{{0,63}}", re.ASCII)
_WORD: Final = re.compile(
    r"""(?P<word>(?P<without>-?)(?P<name>[A-Za-z_][\w.-]*)(?P<sign>:|[<>]=?|[≤≥])
    (?P<value>(?:(?<=:)\s+)?(?:"(?:[^"\\]|\\.)*"|[^\s"]+)|(?<=:)))(?=\s|$) | (?P<bare>\S+)""",
    re.VERBOSE | re.DOTALL,
)
_CLOCK: Final = r"\d?\d:\d\d(?::\d\d)?"
_CLOCKS: Final = re.compile(rf"({_CLOCK})(?:[-–]({_CLOCK}))?", re.ASCII)
_DAY: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_FORMS: Final = "write tenant:NAME, -tenant:NAME, ttft>2s, slo:NAME, 14:00-15:00, -1h or a date"


class WrongWord(ValueError):
    """A word of a line says nothing; the text names it, and what could be meant."""

    def __init__(self, word: str, wrong: str) -> None:
        super().__init__(f"{word[:80]!r}: {wrong}")


def is_id(text: str) -> bool:
    """Whether a text is the id of a request, where both an id and a line can stand."""
    return not re.search(r'[\s:<>≤≥"]|^-|^$', text) and not needs_zone(text.partition("/")[0])


def is_filter(name: str) -> bool:
    """Whether requests can be filtered by this dimension or label."""
    return name in FILTERS or _LABEL_NAME.fullmatch(name) is not None


def parse(line: str, takes: Collection[str] | None = None) -> dict[str, Any]:
    """The parameters of a line by the API's names: a list of values for each filter, one text for each other.

    `takes`: those beside filters that the question has; without it, any. Raises WrongWord.
    """
    found: dict[str, Any] = {}
    times: dict[str, str] = {}
    for match in _WORD.finditer(line):
        if word := match["bare"]:
            pairs = _time(word)
            if twice := [name for name, _ in pairs if name in times]:
                raise WrongWord(word, f"{' and '.join(twice)} is given by a word before it")
            times |= pairs
            names: Iterator[str] = iter(("start",))
        else:
            word = match["word"]
            pairs = [*_named(word, match["name"], match["sign"], _value(word, match["value"]))]
            if match["without"]:
                if not all(is_filter(name) for name, _ in pairs):
                    raise WrongWord(word, "only a filter can have a - before it")
                pairs = [(f"{NOT}{name}", value) for name, value in pairs]
            names = (name for name, _ in pairs if not is_filter(name.removeprefix(NOT)))
            _add(found, word, pairs)
        for name in names:
            if takes is not None and name not in takes:
                raise WrongWord(word, f"this question takes no {name}, but filters{_and(takes)}")
    return found | _window(times, found)


def _and(takes: Collection[str]) -> str:
    known = [name for name in (*_CHECKED, *_ONE_OF, "at_least") if name in takes]
    return "".join(f", {name}" for name in known)


def _add(found: dict[str, Any], word: str, pairs: Collection[tuple[str, str]]) -> None:
    for name, value in pairs:
        if is_filter(name.removeprefix(NOT)):
            found.setdefault(name, []).append(value)
        elif found.setdefault(name, value) != value:
            told = "one latency at a time" if name == "metric" else "one value at a time"
            raise WrongWord(word, f"{told}, and {found[name][:40]!r} stands before it")


def _value(word: str, text: str) -> str:
    text = text.lstrip()
    try:
        value = str(json.loads(text, strict=False)) if text.startswith('"') else text
        value.encode()
    except ValueError:
        raise WrongWord(word, r"write \" for a quote in the value, and \\ for a backslash") from None
    return value


def _named(word: str, name: str, sign: str, value: str) -> Iterator[tuple[str, str]]:
    """The parameters that one word gives. Raises WrongWord."""
    if sign == ":":
        if not value and not word.endswith('""'):
            raise WrongWord(word, f'a value is missing; {name}:"" is none')
        if name in _ONE_OF and value not in (known := get_args(_ONE_OF[name])):
            raise WrongWord(
                word, f"no {name} is {value[:40]!r}{did_you_mean(value, known)}; there are {', '.join(known)}"
            )
        if not (is_filter(name) or name in _ONE_OF or name in _CHECKED):
            raise WrongWord(word, _unknown(name, (*FILTERS, f"{LABEL}NAME", *_ONE_OF, *_CHECKED)))
        _must_be(_CHECKED.get(name, str), word, value)
        yield name, value
        return
    is_least = sign[0] in ">≥"
    if name == _LENGTH:
        _must_be(_whole, word, value)
        yield f"{'min' if is_least else 'max'}_{_LENGTH}", value
        return
    if name not in _LATENCIES:
        raise WrongWord(word, _unknown(name, (*_LATENCIES, _LENGTH)))
    _must_be(parse_duration, word, value)
    yield "metric", name
    yield "at_least" if is_least else "at_most", value


def _unknown(name: str, known: Collection[str]) -> str:
    return f"there is no {name}{did_you_mean(name, known) or '; there are ' + ', '.join(known)}"


def _whole(text: str) -> None:
    if not re.fullmatch(r"\d{1,9}", text, re.ASCII):
        raise ValueError(f"{text!r} is no number of tokens")


def _must_be(kind: Callable[[str], object], word: str, value: str) -> None:
    try:
        kind(value)
    except ValueError as error:
        raise WrongWord(word, str(error)) from None


def _time(word: str) -> list[tuple[str, str]]:
    """The time of a word: `day`, `start` and `end`. Raises WrongWord."""
    if clocks := _CLOCKS.fullmatch(word):
        pairs = [(name, text) for name, text in zip(("start", "end"), clocks.groups(), strict=True) if text]
    elif _DAY.fullmatch(word):
        pairs = [("day", word)]
    else:
        start, both, end = word.partition("/")
        pairs = [("start", start), *([("end", end)] if both else [])]
        if not (word[:1].isdigit() or re.match(r"-\d", word) or both):
            if '"' in word:
                raise WrongWord(word, 'a value with spaces or quotes stands in "…"')
            raise WrongWord(word, f"no word of a query{did_you_mean(word, FILTERS)}; {_FORMS}")
    for _, text in pairs:
        _must_be(parse_moment, word, text)
    return pairs


def _window(times: Mapping[str, str], named: Mapping[str, Any]) -> dict[str, str]:
    """The window of the words that are times. A day is a whole one, or that of the times of day."""
    both = {name: text for name, text in times.items() if name != "day"}
    if twice := [name for name in ("start", "end") if name in named and times]:
        raise WrongWord(f"{twice[0]}:{named[twice[0]]}", "another word is a time too")
    if day := times.get("day"):
        start, end = both.get("start", "0:00"), both.get("end")
        if not _CLOCKS.fullmatch(start):
            raise WrongWord(start, f"one time, and {day} is another")
        next_day = f"{date.fromisoformat(day) + timedelta(days=1)}"
        if not both:
            return {"start": day, "end": next_day}
        both = {"start": f"{day} {start}"}
        if end:
            both["end"] = f"{day if _minutes(start) < _minutes(end) else next_day} {end}"
    return both


def _minutes(clock: str) -> list[int]:
    return [*map(int, clock.split(":"))]


def written(params: Mapping[str, Any]) -> str:
    """The line that `parse` reads back as these parameters; a filter may have one value without a list.

    Raises WrongWord for a parameter that no word gives.
    """
    rest = dict(params)
    words: list[str] = []
    for name in [name for name in rest if is_filter(name.removeprefix(NOT))]:
        values = rest.pop(name)
        sign = "-" if name.startswith(NOT) else ""
        listed = [values] if isinstance(values, str) else values
        words += [f"{sign}{name.removeprefix(NOT)}:{_quoted(value)}" for value in listed]
    if {"at_least", "at_most"} & rest.keys():
        metric = rest.pop("metric", "")
        bounds = (("at_least", ">"), ("at_most", "<"))
        words += [f"{metric}{sign}{rest.pop(name)}" for name, sign in bounds if name in rest]
    bounds = ((f"min_{_LENGTH}", ">"), (f"max_{_LENGTH}", "<"))
    words += [f"{_LENGTH}{sign}{rest.pop(name)}" for name, sign in bounds if name in rest]
    words += _window_words({name: rest.pop(name) for name in ("start", "end") if name in rest})
    line = " ".join([*words, *(f"{name}:{_quoted(value)}" for name, value in rest.items())])
    parse(line)
    return line


def _window_words(window: Mapping[str, str]) -> list[str]:
    """The shortest words that are read as this window."""
    if not window:
        return []
    start, end = window.get("start", ""), window.get("end", "")
    for text in (start, f"{start}-{end}", f"{start}-{end.partition(' ')[2]}", f"{start}/{end}"):
        try:
            if text and parse(text) == window:
                return [text]
        except WrongWord:
            continue
    return [f"{name}:{_quoted(text)}" for name, text in window.items()]


def _quoted(value: str) -> str:
    """A value as a word has it. It can be printed: what cannot is escaped as in JSON."""
    if value and value.isprintable() and not re.search(r'[\s"]', value):
        return value
    return json.dumps(value, ensure_ascii=not value.isprintable())
