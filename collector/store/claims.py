"""Claims of payloads: the same bytes at two collectors of one store are stored by one of them."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final, cast

from collector.store.order import Order
from collector.store.store import Store
from collector.wal.frame import Frame

_COLUMNS: Final = ("claim", "signal", "prefix", "digest", "segment", "withdrawn")
_LONGEST_SQL: Final = {"max_query_size": 64 * 1024 * 1024}
_TRIES: Final = 20


class ContendedError(RuntimeError):
    """Other collectors made claims all the time; try again."""


class Claims:
    """Decides which segment stores a payload: the one with the first claim of its digest.

    Claims have a total order (`Order`):

        A's claim 7     A stores the payloads of claim 7 that no claim before 7 has
        B's claim 8     B leaves out the payloads that claim 7 has

    A collector that dies behind its claim finds the claim when it starts again. A payload that became a dead letter is
    withdrawn, so that it can be sent again.
    """

    def __init__(self, store: Store, signal: str, *, retention_s: float) -> None:
        """Claims are kept for `retention_s` seconds at least."""
        self._store = store
        self._signal = signal
        self._retention_s = round(retention_s)
        self._order = Order(store, "payload_claims")

    def claimed(self, segment: str, frames: Sequence[Frame]) -> list[Frame]:
        """Claim the payloads of a segment; return those that it must store.

        The answer is the same after a crash. Raises `ContendedError`, or the store's errors, and may be called again.
        """
        digests = {frame.digest for frame in frames}
        if not digests:
            return []
        for _ in range(_TRIES):
            claims = self._claims_of(digests)
            mine = [claim for claim, _, claimant, _ in claims if claimant == segment]
            if mine:
                owners = self._owners(claims)
                self._order.forget(min(mine), retention_s=self._retention_s)
                return [frame for frame in frames if owners.get(frame.digest) == segment]
            self._claim(segment, digests)
        msg = f"segment {segment} cannot claim its payloads, because other collectors claim theirs all the time"
        raise ContendedError(msg)

    def withdraw(self, segment: str, digests: Iterable[bytes]) -> None:
        """Take back the segment's claim of payloads that it has not stored. A second call changes nothing."""
        claims = self._claims_of(set(digests))
        first = min((claim for claim, _, claimant, _ in claims if claimant == segment), default=0)
        self._insert(first, segment, digests, withdrawn=1, token=f"{segment} withdrawn")

    def _claim(self, segment: str, digests: Iterable[bytes]) -> None:
        """Try to make the next claim. `own` finds out whether the store took it."""
        number = self._order.next_number()
        self._insert(number, segment, digests, withdrawn=0, token=f"claim {number}")

    def _insert(self, claim: int, segment: str, digests: Iterable[bytes], *, withdrawn: int, token: str) -> None:
        signal, name = (bytes([len(text)]) + text.encode() for text in (self._signal, segment))
        number = struct.pack("<Q", claim)
        rows = [number + signal + digest[:8] + digest + name + bytes([withdrawn]) for digest in sorted(digests)]
        self._store.client().raw_insert(
            "payload_claims",
            column_names=_COLUMNS,
            insert_block=b"".join(rows),
            fmt="RowBinary",
            settings=self._order.settings(token),
        )

    def _claims_of(self, digests: set[bytes]) -> list[tuple[int, bytes, str, int]]:
        """Return claim, digest, segment and `withdrawn` of every claim of these digests, in the order of the claims.

        A digest with the same first bytes as one of them may be among the answers.
        """
        prefixes = ",".join(str(int.from_bytes(digest[:8], "little")) for digest in digests)
        sql = f"""
            SELECT claim, digest, segment, withdrawn FROM payload_claims
            WHERE signal = {{signal:String}} AND prefix IN ({prefixes}) ORDER BY claim
        """
        settings = {**_LONGEST_SQL, **self._order.read_settings}
        answer = self._store.query(sql, {"signal": self._signal}, settings)
        return cast("list[tuple[int, bytes, str, int]]", answer.result_rows)

    @staticmethod
    def _owners(claims: Sequence[tuple[int, bytes, str, int]]) -> dict[bytes, str]:
        """Return each digest's segment with the first claim that was not withdrawn."""
        withdrawn = {(digest, segment) for _, digest, segment, is_withdrawn in claims if is_withdrawn}
        owners: dict[bytes, str] = {}
        for _, digest, segment, _ in claims:
            if (digest, segment) not in withdrawn:
                owners.setdefault(digest, segment)
        return owners
