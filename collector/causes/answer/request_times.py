"""Reads where the time of requests went: of those that a question chooses, and of others beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from collector.ask.template import part
from collector.ask.window import Window
from collector.causes.answer.beyond import Bad, Bools, Floats, Of, Times
from collector.causes.split.names import PARTS
from collector.count.reader import Reader
from collector.slo.cells import Cells
from collector.slo.judge import LARGEST_US
from collector.slo.model import Promise
from collector.sql.fragment import FALSE, Fragment
from tokentrail.shared.parameters import Threshold

Metric = Threshold
Array = npt.NDArray[Any]

MOST_CHOSEN: Final = 10_000
MOST_TYPICAL: Final = 10_000
MOST_JUDGED: Final = 20_000
"""Of more requests, every second, third, … one is read, by its key, and stands for so many."""
_CHOSEN: Final = np.dtype(
    [
        *(("end_ns", "<i8"), ("key", "<u4"), ("cell", "<u8"), ("weight", "<f8"), ("model", "<u8")),
        *((f"{name}_us", "<f8") for name in ("ttft", "tpot", "e2e", "gap", "first_visible")),
        *(("status", "u1"), ("is_bound", "u1")),
    ]
)
COLUMNS: Final = [f"{of}_{name}_us" for of in ("ttft", "rest") for name in PARTS]
ROW: Final = np.dtype(
    [
        *(("end_ns", "<i8"), ("key", "<u4"), ("process", "<u8"), ("weight", "<f8"), ("later", "<f8")),
        *(("tpot_more_us", "<u4"), ("error_share", "<f4"), ("level", "u1"), ("first_token", "u1")),
        *(("is_bound", "u1"), ("ok", "u1"), ("times", "<u4", len(COLUMNS)), ("model", "<u8"), ("cell", "<u8")),
        *(("version", "<u4"), ("reason", "u1"), ("reason_share", "<f4"), ("reason_steps", "<f4")),
    ]
)
"""A row of causes with these columns in `times`. `cell` is that of the promises that were asked about."""
_OK, _FAILED, _CANCELLED = 1, 2, 3
FIRST_TOKEN_KNOWN: Final = 1
_OF_METRIC: Final[dict[Metric, tuple[str, Sequence[Of]]]] = {
    "ttft": (f"ttft_us BETWEEN 1 AND {LARGEST_US}", ["ttft"]),
    "tpot": (f"tpot_us BETWEEN 1 AND {LARGEST_US} AND tpot_at_most_ns IS NULL", ["rest"]),
    "e2e": ("true", ["ttft", "rest"]),
    "gap": (f"gap_us BETWEEN 1 AND {LARGEST_US}", ["rest"]),
    "first_visible": (f"first_visible_us BETWEEN 1 AND {LARGEST_US}", ["ttft", "rest"]),
}


def parts_of(metric: Metric | None) -> Sequence[Of]:
    """The parts of a request's time that a metric is about; both for a verdict."""
    return ["ttft", "rest"] if metric is None else _OF_METRIC[metric][1]


@dataclass(frozen=True)
class Percentile:
    """A percentile in µs, None of no request, and the number of requests that have the metric."""

    us: float | None
    known: int


def read_percentile(
    reader: Reader, population: Window, metric: Metric, quantile: float, *, sampled: bool
) -> Percentile:
    """A percentile of the requests that ended ok; by weight, where requests were sampled."""
    has_it = f"status = 'ok' AND {_OF_METRIC[metric][0]}"
    if sampled:
        value = Fragment(f"quantileExactWeightedIf({quantile:.9f})({metric}_us, toUInt64(weight * 1000), {has_it})")
    else:
        value = Fragment(f"quantileExactInclusiveIf({quantile:.9f})({metric}_us, {has_it})")
    fragments = {"percentile": value, "known": Fragment(has_it), "filter": population.filter}
    row = reader.queries.row("explain_percentile", fragments, **population.bounds)
    return Percentile(float(row["percentile"]) if row["known"] else None, row["known"])


def in_tail(metric: Metric, at_least_us: float | None) -> Fragment:
    """Requests that ended ok with this much of a metric or more; none, where no request has it."""
    if at_least_us is None:
        return FALSE
    known, _ = _OF_METRIC[metric]
    return Fragment(f"status = 'ok' AND {known} AND {metric}_us >= {{tail_us:Float64}}", {"tail_us": at_least_us})


def one_in(n: float, most: int) -> int:
    """Of so many requests one is read, that `most` are or about as many."""
    return max(1, -(-int(n) // most))


def read_chosen(reader: Reader, window: Window, promises: Sequence[Promise], every: int) -> Array:
    """The requests that the window's filter chooses, as the table `requests` has them, those that ended first first.

    The store's order depends on the rows of others: it would decide which of equal requests an answer names.
    """
    fragments = {"cell": Cells(promises).fragments["cell"], "filter": window.filter}
    chosen = reader.queries.array("explain_chosen", fragments, _CHOSEN, **window.bounds, every=every)
    return chosen[np.lexsort((chosen["key"], chosen["end_ns"]))]


def has_ended_ok(chosen: Array) -> Bools:
    """Which of these requests ended ok."""
    ok: Bools = chosen["status"] == _OK
    return ok


def has_failed(chosen: Array) -> Bools:
    """Which of these requests failed."""
    failed: Bools = chosen["status"] == _FAILED
    return failed


@dataclass(frozen=True)
class Explained:
    """Requests with their causes, a row for each."""

    rows: Array
    times: Times
    ttft_us: Floats
    tpot_us: Floats
    """NaN: it cannot exist or is not known."""

    @classmethod
    def of(cls, rows: Array) -> Explained:
        """Rows of the query `explain_rows`."""
        times = np.ascontiguousarray(rows["times"].T, np.float64)
        first, rest = times[: len(PARTS)], times[len(PARTS) :]
        later = rows["later"].astype(np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            gap = np.ceil(rest.sum(0) / later)
            more = rows["tpot_more_us"].astype(np.int32)  # modulo 2^32, as the table has it
            tpot = np.where((later > 0) & (rows["is_bound"] == 0) & (gap + more > 0), gap + more, np.nan)
        has_token = rows["first_token"].astype(bool)
        return cls(rows, Times(first, rest, later, has_token), first.sum(0), tpot)

    @classmethod
    def nothing(cls) -> Explained:
        """No request."""
        return cls.of(np.empty(0, ROW))

    def at(self, places: npt.NDArray[Any]) -> Explained:
        """These rows alone, in this order."""
        times = self.times
        some = Times(times.ttft[:, places], times.rest[:, places], times.later[places], times.has_token[places])
        return Explained(self.rows[places], some, self.ttft_us[places], self.tpot_us[places])

    def one_in(self, every: int) -> Explained:
        """By their keys one in so many, which stands for so many."""
        sample = self.at(np.flatnonzero(self.rows["key"] % np.uint32(every) == 0))
        sample.rows["weight"] *= every
        return sample

    @property
    def n(self) -> int:
        """The number of rows."""
        return len(self.rows)


def read_explained(
    reader: Reader, population: Window, chosen: Window, cells: Cells, every: int, every_chosen: int
) -> Explained:
    """The causes of a population, by their keys of one request in `every`, and of those that are chosen."""
    keys = FALSE
    if every > 1:
        asked = part("chosen_keys", {"filter": chosen.filter})
        keys = Fragment(
            f"(request_key % {{every_chosen:UInt32}} = 0 AND {asked.sql})",
            {**asked.parameters, **chosen.bounds, "every_chosen": every_chosen},
        )
    return _read_rows(reader, population, cells, every, keys)


def read_judged(reader: Reader, window: Window, cells: Cells) -> Explained:
    """The causes of a window's requests. Of more than `MOST_JUDGED`, some stand for the others by their weight."""
    every = one_in_judged(reader, window)
    return _read_rows(reader, window, cells, every, FALSE).one_in(every)


def one_in_judged(reader: Reader, window: Window) -> int:
    """Of so many requests of a window with causes one is read, that `MOST_JUDGED` are or about as many."""
    n = reader.queries.count("causes", "ended_in_window", of_causes(window), **window.bounds)
    return one_in(n, MOST_JUDGED)


def _read_rows(reader: Reader, window: Window, cells: Cells, every: int, chosen: Fragment) -> Explained:
    times = Fragment(", ".join(COLUMNS))
    fragments = {"times": times, "filter": of_causes(window), "cell": cells.cell, "chosen": chosen}
    return Explained.of(_newest(reader.queries.array("explain_rows", fragments, ROW, **window.bounds, every=every)))


def _newest(rows: Array) -> Array:
    """Of each request its row with the highest version, in the order of `rows`."""
    requests = marks(rows["end_ns"], rows["key"])
    order = np.lexsort((rows["version"], requests))
    is_last = np.ones(len(rows), bool)
    is_last[:-1] = requests[order][1:] != requests[order][:-1]
    return rows[np.sort(order[is_last])]


def of_ids(trace_id: str, span_id: str | None) -> Fragment:
    """The request with these ids, in hex."""
    trace, span = ("toFixedString(unhex({of_trace:String}), 16)", "toFixedString(unhex({of_span:String}), 8)")
    return Fragment(f"trace_id = {trace} AND span_id = {span}", {"of_trace": trace_id, "of_span": span_id})


def of_causes(window: Window) -> Fragment:
    """The window's filter for the table `causes`, which has no ids: a filter by them asks the requests."""
    if "start_ns" not in window.filter.parameters:
        return window.filter
    keys = part("keys_of_requests", {"filter": window.filter})
    return Fragment(keys.sql, {**keys.parameters, **window.bounds})


@dataclass(frozen=True)
class Weighed:
    """Requests that are explained. A weight is 1, or the number of requests that one stands for."""

    explained: Explained
    weight: Floats

    @property
    def n(self) -> int:
        """The number of requests."""
        return self.explained.n

    @property
    def times(self) -> Times:
        """The times in causes."""
        return self.explained.times

    @property
    def rows(self) -> Array:
        """The rows of the query `explain_rows`."""
        return self.explained.rows


@dataclass(frozen=True)
class Rows(Weighed):
    """The chosen requests that are explained, with what the table `requests` has of them."""

    requests: Array
    """Of each, its row of the query `explain_chosen`."""

    @classmethod
    def of(cls, chosen: Array, known: Explained, scale: float) -> Rows:
        """The chosen ones among those whose causes are known, in the order of `chosen`. Each stands for so many."""
        wanted, present = (marks(one["end_ns"], one["key"]) for one in (chosen, known.rows))
        order = np.argsort(present, kind="stable")
        at = np.searchsorted(present, wanted, sorter=order) if known.n else np.zeros(len(wanted), np.int64)
        places = order[np.minimum(at, known.n - 1)] if known.n else at
        is_there = present[places] == wanted if known.n else np.zeros(len(wanted), bool)
        requests = chosen[is_there]
        return cls(known.at(places[is_there]), requests["weight"] * scale, requests)

    def to_judge(self, promises: Sequence[Promise]) -> Bad:
        """What judges these requests again, once some of their time is removed."""
        requests = self.requests
        judged = Cells(promises).judged(requests["cell"])
        names = ("ttft_us", "tpot_us", "e2e_us", "gap_us", "first_visible_us")
        ttft, tpot, e2e, gap, visible = (requests[name] for name in names)
        waited = (requests["status"] == _CANCELLED) & (requests["ttft_us"] == 0)
        return Bad(
            times=self.times,
            selected=[judged.outcomes(i).total for i in range(len(promises))],
            ttft=np.where(waited, e2e, np.where(requests["ttft_us"] == 0, np.nan, ttft)),
            ttft_unknown=np.isnan(ttft),
            tpot=np.where(requests["tpot_us"] == 0, np.nan, tpot),
            tpot_unknown=np.isnan(tpot) | (requests["is_bound"] == 1),
            e2e=e2e,
            gap=np.where(requests["gap_us"] == 0, np.nan, gap),
            gap_unknown=np.isnan(gap),
            visible=np.where(waited, e2e, np.where(requests["first_visible_us"] == 0, np.nan, visible)),
            visible_unknown=np.isnan(visible) & ~waited,
            ok=requests["status"] == _OK,
            failed=requests["status"] == _FAILED,
            error=e2e * self.rows["error_share"],
            weight=self.weight,
        )


def marks(end_ns: npt.NDArray[np.int64], key: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    """A number for each end and key. Those of two requests are equal once in 2^64 pairs."""
    mixed: npt.NDArray[np.uint64] = end_ns.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + key.astype(np.uint64)
    return mixed


def as_seconds(us: float | None) -> float | None:
    """Microseconds as seconds; None stays None."""
    return None if us is None else us / 1e6
