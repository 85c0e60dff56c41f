"""What was wrong with the bad requests of an SLO, and why no cause of it is known, in the words of alerts and verdicts.

    failed         All ended with the error 500.
    missed         All missed TPOT: 112 ms at the median, 60 ms promised.
    never known    Their cause is never known: this source tells neither phases nor steps. Install the package …
    not known yet  Their cause is not known yet: …

An error needs no other cause. Most of what misses a threshold has one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, cast

import numpy as np
import numpy.typing as npt

from collector.ask.window import Window
from collector.causes.answer.answer import Explanation, LevelOut
from collector.causes.answer.request_times import read_percentile
from collector.causes.answer.served import advice
from collector.count.reader import Reader
from collector.incidents.incident import TopCause
from collector.slo.cells import Cells
from collector.slo.judge import selected, selects
from collector.slo.model import Slo
from collector.sql.fragment import Fragment, all_of
from tokentrail.shared.durations import duration_text
from tokentrail.shared.formatting import duration, named, percent
from tokentrail.shared.parameters import Threshold

NONE_ENDED: Final = "None of the bad requests has ended."
NOT_YET: Final = "Their cause is not known yet: it is told a minute or two after a request's end."
NEVER_AT_CLIENTS: Final = (
    "Their cause is never known: clients and gateways do not see it. If the engine behind them is yours, record it "
    "(docs/engines/README.md)."
)
NO_TYPICAL: Final = "Their cause is not known: no good request is explained with which they could be compared."
MOSTLY_FAILED: Final = 0.6
"""From this share on, the error is the reason, and no cause of the time is told."""
_LEAST: Final = 0.05
_LEAST_BLAMED: Final = 0.1
"""A cause with this share of the excess is told as one."""
_MOST_ERRORS: Final = 3
_LONGEST_ERROR: Final = 40
_NAMES: Final[dict[str, str]] = {
    "ttft": "TTFT",
    "tpot": "TPOT",
    "e2e": "E2E",
    "gap": "the longest gap between tokens",
    "first_visible": "the first visible token",
}


@dataclass(frozen=True)
class Wrong:
    """The bad requests of a time that have ended."""

    text: str
    requests: float
    """How many there are."""
    failed: float
    """The share that ended with an error."""
    engines: Sequence[str]
    """With most of them first."""

    is_client: bool
    """They are what clients or gateways report."""

    @property
    def never_known(self) -> str:
        """Why no cause is ever known of requests of which no phase and no step is told, and what would tell."""
        if self.is_client:
            return NEVER_AT_CLIENTS
        more = advice("unexplained", self.engines)
        return f"Their cause is never known: this source tells neither phases nor steps. {more}"

    def with_cause(self, cause: str | None, *, is_told: bool, is_any: bool, more: str | None = None) -> str:
        """The text, and behind it the cause; None: nothing is blamed, although causes of some of them are told, or
        although some were looked at and nothing is told, or since none was looked at yet.

        `more`: what is missing so that causes that are told are told better.
        """
        if cause is None and self.failed < MOSTLY_FAILED:
            told = f"Their cause is not known: {more}" if more else NO_TYPICAL
            cause = told if is_told else self.never_known if is_any or self.is_client else NOT_YET
        return f"{self.text} {cause}" if cause else self.text

    def with_levels(self, cause: str | None, levels: Sequence[LevelOut], more: str | None = None) -> str:
        """`with_cause` of requests that are explained so far; `more` where the levels do not say what is missing."""
        told = {one.level for one in levels}
        known = [level for level in levels if level.more and level.level != "none"]
        more = max(known, key=lambda level: level.requests).more if known else more
        return self.with_cause(cause, is_told=bool(told - {"none"}), is_any=bool(told), more=more)

    def beside(self, answer: Explanation) -> str:
        """The text that stands above the causes of an answer of `/explain`, and why it names none where it does not."""
        blamed = any(part.cause != "unexplained" and (part.share or 0.0) >= _LEAST_BLAMED for part in answer.parts)
        return self.with_levels("" if blamed else None, answer.levels)


def unexplained(top: TopCause | None) -> str | None:
    """What is missing where most of what bad requests took has no cause; None where a cause has most of it."""
    if top is None or top.cause != "unexplained":
        return None
    return f"{percent(top.share)} of what they took beyond good requests is unexplained."


def what_was_wrong(reader: Reader, window: Window, slo: Slo, tenant: str | None = None) -> Wrong | None:
    """What was wrong with the bad requests of an SLO, or of one of its tenants, that ended in the window; None without
    any."""
    of_tenant = () if tenant is None else (selected({"tenant": [tenant]}, "wrong_tenant"),)
    cells, chosen = Cells([slo]), replace(window, filter=all_of(window.filter, selects(slo, "wrong"), *of_tenant))
    rows = reader.queries.rows("bad_kinds", {"cell": cells.cell, "filter": chosen.filter}, **chosen.bounds)
    judged = cells.judged([row["cell"] for row in rows])
    weight = np.array([row["n"] for row in rows]) * judged.outcomes(0).bad
    if not weight.sum():
        return None
    share, failed = weight / weight.sum(), np.array([bool(row["is_failed"]) for row in rows])
    errors, engines = Counter[str](), Counter[str]()
    for row, of in zip(rows, share.tolist(), strict=True):
        engines[row["engine"]] += of
        if row["is_failed"]:
            errors[row["error"]] += of
    sentences: list[tuple[float, str]] = []
    if errors.total() >= _LEAST:
        sentences.append((errors.total(), _failed(errors)))
    for name, ns in slo.thresholds.given().items():
        missed = judged.missed(name, ns) & ~failed
        if (of_missed := float(share[missed].sum())) >= _LEAST:
            late = judged.numbers[missed & judged.outcomes(0).bad]
            sentences.append((of_missed, _missed(reader, chosen, cells, late, name, ns, of_missed)))
    text = " ".join(text for _, text in sorted(sentences, key=lambda one: -one[0]))
    is_client = "client" in slo.select["vantage"]
    return Wrong(
        text, float(weight.sum()), errors.total(), [name for name, of in engines.most_common() if of], is_client
    )


def _part(share: float) -> str:
    return "All" if (text := percent(share)) == "100 %" else text


def _failed(errors: Counter[str]) -> str:
    total, first = errors.total(), _part(errors.total())
    told = [(named(name, _LONGEST_ERROR), of / total) for name, of in errors.most_common(_MOST_ERRORS)]
    if percent(told[0][1]) == "100 %":
        return f"{first} ended with {f'the error {told[0][0]}' if told[0][0] else 'an error of no name'}."
    each = ", ".join(f"{name or 'no name'} ({percent(of)})" for name, of in told)
    return f"{first} ended with an error: {each}."


def _missed(
    reader: Reader,
    chosen: Window,
    cells: Cells,
    late: npt.NDArray[np.uint64],
    name: str,
    ns: int,
    share: float,
) -> str:
    parameters = {**cells.cell.parameters, "late_cells": late.tolist()}
    of_late = Fragment(f"{cells.cell.sql} IN {{late_cells:Array(UInt64)}}", parameters)
    window = replace(chosen, filter=all_of(chosen.filter, of_late))
    took = read_percentile(reader, window, cast("Threshold", name), 0.5, sampled=True)
    promised = f"{duration_text(ns)} promised"
    told = f": {duration(took.us / 1e6)} at the median, {promised}" if took.us else f" ({promised})"
    return f"{_part(share)} missed {_NAMES[name]}{told}."
