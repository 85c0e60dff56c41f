"""The rows of the table `causes`: what is copied from the requests, and their parts in the form that is stored."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from collector.causes.split.names import PARTS
from collector.causes.split.reasons import REASONS
from collector.causes.split.requests import LEVELS, UNKNOWN_US, Explained
from collector.causes.split.slower import KINDS
from collector.causes.stage.models import VERSION, Judges

COPIED: Final = (
    "end", "ingested_at", "engine", "service", "instance", "process_tenant", "variant", "vantage", "operation", "model",
    "tenant", "slo_class", "labels", "status", "error_type", "output_tokens", "weight", "tpot_is_bound",
    "gap_us", "first_visible_us",
)  # fmt: skip
"""Columns of `causes` with the values of the same columns of `requests`."""
_EXACT_BITS: Final = 10
"""A part that is not the largest is exact to 0.2 %. The last digits would be noise, and half of the table's bytes."""
_INFLICTED_BITS: Final = 7
_RATIO: Final = ("slower_by", "slower_low", "slower_high")
_MOST_PERMILLE: Final = 65534
_UNKNOWN_PERMILLE: Final = 65535

Ints = NDArray[np.int64]


class Parts:
    """The parts of some requests, by row. Until a process is explained, all time of its requests is unexplained."""

    def __init__(self, requests: Mapping[str, Sequence[Any]]) -> None:
        """`requests` has the columns of `explain/wanted.sql`."""
        self._requests = requests
        ttft, whole = (np.array(requests[name], np.int64) for name in ("ttft_us", "e2e_us"))
        self._is_none, self._is_unknown = ttft == 0, ttft == UNKNOWN_US
        before = np.where(self._is_none | self._is_unknown, whole, np.minimum(ttft, whole))
        self._ttft, self._rest = (np.zeros((len(whole), len(PARTS)), np.int64) for _ in range(2))
        self._ttft[:, -1], self._rest[:, -1] = before, whole - before
        self._inflicted, self._error = (np.full(len(whole), UNKNOWN_US, np.int64) for _ in range(2))
        self._level = np.zeros(len(whole), np.int64)
        self._reason = np.full(len(whole), REASONS.index("failed"))
        self._reason_share, self._reason_steps = (np.full(len(whole), np.nan) for _ in range(2))
        self._model_at_s = np.zeros(len(whole), np.int64)
        self._slower_than, self._slower_name = np.zeros(len(whole), np.int64), np.full(len(whole), "", object)
        self._slower = np.full((3, len(whole)), np.nan)

    def put(self, rows: Ints, explained: Explained, places: Ints, judges: Judges) -> None:
        """Write what is explained at `places` into `rows`."""
        self._ttft[rows], self._rest[rows] = explained.ttft_us[places], explained.rest_us[places]
        self._inflicted[rows], self._error[rows] = explained.inflicted_us[places], explained.error_us[places]
        level = np.array([LEVELS.index(one) for one in explained.level[places]], np.int64)
        self._level[rows] = level
        self._reason[rows] = explained.reason[places]
        self._reason_share[rows], self._reason_steps[rows] = (
            explained.reason_share[places],
            explained.reason_steps[places],
        )
        by_itself = explained.model is None or explained.model.by_itself
        self._model_at_s[rows] = np.where((level == LEVELS.index("steps")) & ~by_itself, judges.at_s, 0)
        fact = explained.slower
        if fact is not None and not (fact.kind == "sister" and judges.sister and judges.sister.is_other):
            self._slower_than[rows], self._slower_name[rows] = KINDS.index(fact.kind), judges.name_of(fact.kind)
            self._slower[:, rows] = np.array([[fact.ratio], [fact.low], [fact.high]]).round(4)

    def lacking(self, reasons: Collection[str]) -> Ints:
        """The rows that are not explained step by step for one of these reasons."""
        return np.flatnonzero(np.isin(self._reason, [REASONS.index(name) for name in reasons]))

    @property
    def levels(self) -> dict[str, int]:
        """The number of requests by level."""
        return dict(zip(LEVELS, np.bincount(self._level, minlength=len(LEVELS)).tolist(), strict=True))

    def columns(self) -> dict[str, Sequence[Any]]:
        """The columns of `causes`."""
        requests = self._requests
        ttft, rest = rounded(self._ttft, _EXACT_BITS), rounded(self._rest, _EXACT_BITS)
        whole = self._ttft.sum(1) + self._rest.sum(1)
        client = np.array([vantage != "server" for vantage in requests["vantage"]], np.bool_)
        client &= np.isin(self._reason, [REASONS.index(name) for name in ("failed", "no_phases")])
        permille = np.minimum(np.rint(1000 * self._error / np.maximum(whole, 1)), _MOST_PERMILLE)
        known = {
            "request_key": np.array(requests["key"], np.uint64) & np.uint64(0xFFFFFFFF),
            "first_token": np.select([self._is_none, self._is_unknown], [0, 2], 1),
            "tpot_more_us": self._tpot_more_us(rest.sum(1)),
            "inflicted_us": _or_none(_binary(self._inflicted), self._inflicted != UNKNOWN_US),
            "error_permille": np.where(self._error == UNKNOWN_US, _UNKNOWN_PERMILLE, permille).astype(np.int64),
            "level": self._level,
            "reason": np.where(client, REASONS.index("client"), self._reason),
            "reason_share": _or_none(self._reason_share.round(4), np.isfinite(self._reason_share)),
            "reason_steps": _or_none(
                np.nan_to_num(self._reason_steps).astype(np.int64), np.isfinite(self._reason_steps)
            ),
            "slower_than": self._slower_than,
            "slower_name": self._slower_name,
            **{name: _or_none(one, np.isfinite(one)) for name, one in zip(_RATIO, self._slower, strict=True)},
            "model_at": self._model_at_s,
            "version": VERSION * len(LEVELS) + self._level,
        }
        parts = {f"ttft_{name}_us": ttft[:, i] for i, name in enumerate(PARTS)}
        parts |= {f"rest_{name}_us": rest[:, i] for i, name in enumerate(PARTS)}
        return {
            **{name: requests[name] for name in COPIED},
            **{name: column.tolist() for name, column in {**known, **parts}.items()},
        }

    def _tpot_more_us(self, rest: Ints) -> Ints:
        """What `tpot_us` is beyond the mean gap that the alias computes, modulo 2^32."""
        tokens = np.array([tokens or 0 for tokens in self._requests["output_tokens"]], np.int64)
        gaps = np.maximum(tokens, 2) - 1
        mean = np.where(tokens > 1, -(-rest // gaps), 0)
        return (np.array(self._requests["tpot_us"], np.int64) - mean) % 2**32


def rounded(parts: Ints, bits: int) -> Ints:
    """Round all parts but the largest down to so many binary digits; the largest takes what they lose.

    1000 and 70000 µs, 8 bits     1000 is 1111101000, of which 1111101000 stays: 8 bits and two zeros
    1003 and 70000 µs, 8 bits     1000 and 70003
    """
    kept = _binary(parts, bits, up=False)
    rows, largest = np.arange(len(parts)), parts.argmax(1)
    kept[rows, largest] = parts[rows, largest]
    kept[rows, largest] += parts.sum(1) - kept.sum(1)
    return kept


def _or_none(values: NDArray[Any], known: NDArray[np.bool_]) -> NDArray[Any]:
    """The values as objects, None where one is not known."""
    objects = values.astype(object)
    objects[~known] = None
    return objects


def _binary(values: Ints, bits: int = _INFLICTED_BITS, *, up: bool = True) -> Ints:
    """Values with so many binary digits at most: the nearest, or the next below."""
    shift = np.maximum(np.frexp(values.astype(float))[1] - bits, 0)
    half = np.where(up & (shift > 0), 1 << np.maximum(shift - 1, 0), 0)
    nearest: Ints = np.minimum((values + half) >> shift, 2**32 - 1) << shift
    return nearest
