"""Leaves out tokens that the store has, before the others are inserted as columns of the table `tokens`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from collector.otlp.tokens import Columns, joined
from collector.store.store import Store
from tokentrail import semconv

Numbers = npt.NDArray[np.uint64]

_MOST_ANSWERS: Final = 100_000
"""Answers whose newest token is remembered: 20 MB."""
_INDEX_BITS: Final = 24
_LARGEST: Final = 2**_INDEX_BITS - 1
"""No answer has so many tokens. Larger indices count as this one, and are compared one by one."""
_MIXERS: Final = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9)
"""Odd numbers without a pattern: they mix ids that are counted up."""
_NAME: Final = semconv.TOKEN_SPAN.encode()
_REQUEST: Final = [("trace_id", "<u8", 2), ("request_span_id", "<u8"), ("tenant_hash", "<u8")]
_RANGE: Final = np.dtype([*_REQUEST, ("choice", "<u2"), ("first", "<u4"), ("last", "<u4")])
_TOKEN: Final = np.dtype([("minute", "<u4"), *_REQUEST, ("choice", "<u2"), ("token_index", "<u4")])
"""A row of each query in ClickHouse's RowBinary format."""
_BESIDE_INSERTS: Final = {"priority": 1}

_OF_REQUESTS: Final = """
    FROM tokens
    WHERE minute IN (SELECT toDateTime(arrayJoin({minutes:Array(UInt32)}), 'UTC'))
        AND (trace_id, request_span_id, tenant_hash) IN
    (
        SELECT
            toFixedString(unhex(substring(k, 1, 32)), 16), toFixedString(unhex(substring(k, 33, 16)), 8),
            reinterpretAsUInt64(unhex(substring(k, 49)))
        FROM (SELECT arrayJoin({requests:Array(String)}) AS k)
    )
"""
_STORED_RANGES: Final = f"""
    SELECT trace_id, request_span_id, tenant_hash, choice, min(token_index), max(token_index) {_OF_REQUESTS}
    GROUP BY trace_id, request_span_id, tenant_hash, choice
"""
_STORED: Final = f"SELECT minute, trace_id, request_span_id, tenant_hash, choice, token_index {_OF_REQUESTS}"
_NEWEST_MINUTE: Final = "SELECT toUnixTimestamp(max(minute)) FROM tokens"


class NewTokens:
    """Tells which tokens are new, by their minute, request, choice and index. One thread calls.

    An answer's tokens come in the order of their indices. So a number for each answer nearly always tells that all
    are new. Otherwise the store is asked, and if need be they are compared one by one:

        inserted 0 to 9, and 10 to 17 come    all are new
        inserted 0 to 9, and 8 to 17 come     10 to 17 are new: a sender has sent 8 and 9 again, with others

    What was stored before, or in another way, is not remembered. Tokens of its newest minute, and older ones, are
    looked for in the store. So are all tokens of a server, into which other collectors may insert.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._next: dict[int, int] = {}
        """By the number of an answer, its next index."""
        self._complete_after: int | None = None
        """The answers have every token of a later minute that is stored. None: not known."""
        self._newest = 0

    def forget(self, payloads: Iterable[bytes | memoryview]) -> None:
        """The store decodes these payloads. If they have tokens, what is remembered is not all any more."""
        if self._complete_after is not None and any(_NAME in bytes(payload) for payload in payloads):
            self._next.clear()
            self._complete_after = None

    def without_stored(self, columns: Sequence[Columns]) -> Sequence[Columns]:
        """Return the rows that the store lacks, each once. Raises the store's errors, and may be called again."""
        if not columns:
            return columns
        tokens = {name: np.concatenate([some[name] for some in columns]) for name in _TOKEN.names or ()}
        mixed = _mixed(tokens)
        ranges, repeated = _index_ranges(mixed, tokens["token_index"])
        if self._are_new(*ranges, tokens["minute"]) and not repeated:
            return columns
        parameters = _parameters(tokens, np.unique(mixed, return_index=True)[1])
        if not repeated and not self._store_has_some(parameters, *ranges):
            return columns
        return _one_by_one(columns, tokens, self._store.binary(_STORED, parameters, _BESIDE_INSERTS))

    def _are_new(self, answers: Numbers, firsts: Numbers, lasts: Numbers, minutes: npt.NDArray[Any]) -> bool:
        """Tell whether no token is stored for certain, and remember them: they are stored next."""
        if not self._store.embedded:
            return False
        if self._complete_after is None:
            self._complete_after = int(self._store.query(_NEWEST_MINUTE).result_rows[0][0])
        are_new = int(minutes.min()) > self._complete_after
        for answer, first, last in zip(answers.tolist(), firsts.tolist(), lasts.tolist(), strict=True):
            following = self._next.get(answer, 0)
            are_new &= first >= following
            self._next[answer] = max(following, last + 1)
        self._newest = max(self._newest, int(minutes.max()))
        if len(self._next) > _MOST_ANSWERS:
            self._next.clear()
            self._complete_after = max(self._complete_after, self._newest)
        return are_new

    def _store_has_some(self, parameters: dict[str, Any], answers: Numbers, firsts: Numbers, lasts: Numbers) -> bool:
        """Tell whether the store may have a token of these ranges."""
        ranges = np.frombuffer(self._store.binary(_STORED_RANGES, parameters, _BESIDE_INSERTS), _RANGE)
        stored = _mixed(ranges) >> np.uint64(_INDEX_BITS)
        places = np.searchsorted(answers, stored).clip(max=len(answers) - 1)
        meets = (ranges["first"] <= lasts[places]) & (ranges["last"] >= firsts[places])
        return bool(((answers[places] == stored) & meets).any())


def _mixed(rows: Mapping[str, npt.NDArray[Any]] | npt.NDArray[Any]) -> Numbers:
    """A number for the request and choice of each row. Processes of two tenants may tell the same ids."""
    trace, span, choice = (np.uint64(mixer) for mixer in _MIXERS)
    mixed: Numbers = (
        rows["trace_id"][:, 0] ^ rows["trace_id"][:, 1] * trace ^ rows["request_span_id"] ^ rows["tenant_hash"]
    ) * span
    return mixed ^ rows["choice"] * choice


def _index_ranges(mixed: Numbers, token_index: Numbers) -> tuple[tuple[Numbers, Numbers, Numbers], bool]:
    """The answers with the first and the last index of each, and whether an index occurs twice or is too large.

    40 bits tell most answers apart. Two with the same ones are compared in full.
    """
    indexed = mixed & ~np.uint64(_LARGEST) | token_index.clip(max=_LARGEST)
    indexed.sort()
    answers, indices = indexed >> np.uint64(_INDEX_BITS), indexed & np.uint64(_LARGEST)
    starts = np.flatnonzero(np.diff(answers, prepend=answers[:1] + np.uint64(1)))
    lasts = indices[np.append(starts[1:], len(indices)) - 1]
    repeated = bool((indexed[1:] == indexed[:-1]).any() or lasts.max() == _LARGEST)
    return (answers[starts], indices[starts], lasts), repeated


def _parameters(tokens: Columns, examples: npt.NDArray[np.intp]) -> dict[str, Any]:
    """The minutes of these tokens and their requests, of each of which the examples have a token."""
    requests = np.empty(len(examples), _REQUEST)
    for name in requests.dtype.names or ():
        requests[name] = tokens[name][examples]
    return {
        "minutes": np.unique(tokens["minute"]).tolist(),
        "requests": sorted({request.hex() for request in requests.view(f"V{requests.itemsize}").tolist()}),
    }


def _one_by_one(columns: Sequence[Columns], tokens: Columns, stored: bytes) -> Sequence[Columns]:
    keys = np.empty(len(tokens["minute"]), _TOKEN)
    for name in _TOKEN.names or ():
        keys[name] = tokens[name]
    row = f"V{_TOKEN.itemsize}"
    known = set(np.frombuffer(stored, row).tolist())
    first: dict[bytes, int] = {}
    for place, key in enumerate(keys.view(row).tolist()):
        if key not in known:
            first.setdefault(key, place)
    kept = np.array([*first.values()], np.intp)
    return [{name: column[kept] for name, column in joined(columns).items()}] if len(kept) else []
