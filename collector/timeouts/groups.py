"""`/timeouts`: the requests of a window by model and by what tells most about their waits; time-outs and hedging."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from typing import Final

import numpy as np

from collector.ask.times import SECOND_NS
from collector.ask.window import Window
from collector.count.answers import WindowOut
from collector.count.reader import Reader
from collector.timeouts import hedge
from collector.timeouts.answer import Hedging, Percentile, TimeoutGroup, Timeouts
from collector.timeouts.curve import number, waits_out
from collector.timeouts.read import Read, read
from collector.timeouts.split import lengths_of, splits_of, telling
from collector.timeouts.survival import Ints
from collector.timeouts.told import summary_of, told_of_hedging
from collector.timeouts.waits import ANSWERED, Requests, WaitName, Waits, waits_of

_MOST_MODELS: Final = 20
_MOST_HEDGED: Final = 6
"""Groups for which a second request is tried: those of the models with the most requests."""
_SOME: Final = 12_000
"""Of more requests of a group, every second, third, … tells of hedging."""
_SOME_OF_MODEL: Final = 100_000
"""Likewise of how a model's requests are divided."""
_MOST_OTHERS: Final = 2
"""Other models to which a second request may go."""


def timeouts(reader: Reader, window: Window, kill: float, at_ns: Sequence[int]) -> Timeouts:
    """The waits of requests that began in a window; `kill`: the share of healthy ones that a time-out may cut."""
    found = read(reader, window)
    groups, left_out = groups_of(found, kill, [ns / SECOND_NS for ns in at_ns])
    return Timeouts(
        window=WindowOut.of(window, reader.complete_ns),
        kill=kill,
        read_one_in=found.one_in,
        left_out=found.left_out + left_out,
        groups=groups,
        summary=summary_of(groups),
    )


def groups_of(found: Read, kill: float, at_s: Sequence[float]) -> tuple[list[TimeoutGroup], int]:
    """The groups, and the number of requests of models that are left out."""
    names, of_kind = np.unique(found.kinds["model"].astype(str), return_inverse=True)
    model = of_kind[found.requests.kind] if len(names) else np.zeros(0, np.int64)
    sizes = np.bincount(model, found.requests.weight, len(names))
    order = np.argsort(-sizes, kind="stable")
    of_models = {
        str(names[i]): found.requests.where(model == i) if len(order) > 1 else found.requests
        for i in order[:_MOST_MODELS]
    }
    groups: list[TimeoutGroup] = []
    for name, requests in of_models.items():
        for split, value, part in _parts(requests, found):
            hedging = [*_hedging(part, name, of_models, found)] if len(groups) < _MOST_HEDGED else []
            waits = [*waits_out(part, kill, at_s)]
            n = number(part.weight.sum())
            groups.append(TimeoutGroup(model=name, split=split, value=value, requests=n, waits=waits, hedging=hedging))
    return groups, int(sizes[order[_MOST_MODELS:]].sum())


def _parts(requests: Requests, found: Read) -> Iterator[tuple[str, str, Requests]]:
    columns = {name: [*values] for name, values in found.kinds.items()}
    some = requests.some(_SOME_OF_MODEL)
    split = telling(some, waits_of(some), splits_of(some, columns))
    if split is None:
        yield "", "", requests
    else:
        (split,) = (one for one in splits_of(requests, columns) if one.dimension == split.dimension)
        yield from ((split.dimension, value, part) for value, part in split.parts(requests))


def _hedging(requests: Requests, model: str, models: Mapping[str, Requests], found: Read) -> Iterator[Hedging]:
    """A second request for the first token, or for the whole where nobody tells of tokens."""
    requests = requests.some(_SOME)
    answered = np.count_nonzero(waits_of(requests)["first_token"].kind == ANSWERED)
    wait: WaitName = "first_token" if answered >= hedge.LEAST else "e2e"
    processes = np.unique(found.kinds["process"].astype(str), return_inverse=True)[1]
    first = _sent(requests, wait, processes)
    tried = [("same process", first, True)]
    if len(np.unique(first.process)) > 1:
        tried.append(("another process", first, False))
    others = [name for name in models if name != model][:_MOST_OTHERS]
    tried += [(name, _sent(models[name].some(_SOME), wait, processes), False) for name in others]
    for to, second, same in tried:
        one = hedge.best(first, second, same=same)
        if one is not None:
            yield _out(wait, to, one)


def _sent(requests: Requests, wait: WaitName, processes: Ints) -> hedge.Sent:
    waits: Waits = waits_of(requests)[wait]
    return hedge.Sent.of(requests, waits, lengths_of(requests.input_tokens), processes[requests.kind])


def _seconds(us: float) -> float | None:
    return us / 1e6 if isfinite(us) else None


def _out(wait: WaitName, to: str, one: hedge.Hedged) -> Hedging:
    p50, p99 = (Percentile(before_s=_seconds(old), after_s=_seconds(new)) for old, new in (one.p50, one.p99))
    low, high = _seconds(one.p99_low), _seconds(one.p99_high)
    out = Hedging(
        wait=wait,
        to=to,
        after_s=float(f"{one.after_us / 1e6:.3g}"),
        more_requests=one.more,
        p50=p50,
        p99=p99,
        p99_low_s=low,
        p99_high_s=high,
        shared=one.shared,
        summary="",
    )
    return out.model_copy(update={"summary": told_of_hedging(out)})
