"""Claims of payloads: the same bytes at two collectors of one store are stored by one of them."""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Iterable, Sequence
from typing import Final, cast

from collector.store.store import Store
from collector.wal.frame import Frame

_COLUMNS: Final = ("claim", "signal", "prefix", "digest", "segment", "withdrawn")
_INSERT_SETTINGS: Final = {"async_insert": 0, "insert_deduplicate": 1}
_LONGEST_SQL: Final = {"max_query_size": 64 * 1024 * 1024}
_TRIES: Final = 20
_PAUSE_S: Final = 0.05
_TRIES_OF_A_LOST_NUMBER: Final = 200
"""10 s. A number that the store refuses for so long, without having a claim of it, was lost when the store crashed."""
_FORGET_EVERY: Final = 1000
_OLD_PARTITIONS: Final = """
    SELECT intDiv(claim, 65536) AS number
    FROM payload_claims
    WHERE number < (SELECT intDiv(max(claim), 65536) FROM payload_claims)
    GROUP BY number
    HAVING max(claimed_at) < now() - {retention_s:UInt32}
"""


class ContendedError(RuntimeError):
    """Other collectors made claims all the time; try again."""


class Claims:
    """Decides which segment stores a payload: the one with the first claim of its digest.

    Claims have a total order, because claim 7 is inserted with the token "claim 7" after claim 6 was seen, and the
    store takes a token once:

        A and B see claim 6          both insert claim 7, and the store takes A's
        A sees claim 7: its own      it stores the payloads of claim 7 that no claim before 7 has
        B sees claim 7: A's          it inserts claim 8, and leaves out the payloads that claim 7 has

    A collector that dies behind its claim finds the claim when it starts again. A payload that became a dead letter is
    withdrawn, so that it can be sent again.
    """

    def __init__(self, store: Store, signal: str, *, retention_s: float) -> None:
        """Claims are kept for `retention_s` seconds at least."""
        self._store = store
        self._signal = signal
        self._retention_s = round(retention_s)
        self._newest = -1
        self._lost_numbers = 0

    def own(self, segment: str, frames: Sequence[Frame]) -> list[Frame]:
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
                self._forget(min(mine))
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
        sql = "SELECT max(claim) FROM payload_claims"
        newest = int(self._store.query(sql, settings=self._store.layout.decision_settings).result_rows[0][0])
        if newest == self._newest:  # another collector's claim of the next number is not visible yet
            self._lost_numbers += 1
            time.sleep(_PAUSE_S * random.uniform(0.5, 1.5))  # noqa: S311  # collectors must not keep pace
        else:
            self._newest, self._lost_numbers = newest, 0
        number = newest + 1 + self._lost_numbers // _TRIES_OF_A_LOST_NUMBER
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
            settings={**_INSERT_SETTINGS, **self._store.layout.decision_settings, "insert_deduplication_token": token},
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
        settings = {**_LONGEST_SQL, **self._store.layout.decision_settings}
        found = self._store.client().query(sql, {"signal": self._signal}, settings=settings)
        return cast("list[tuple[int, bytes, str, int]]", found.result_rows)

    @staticmethod
    def _owners(claims: Sequence[tuple[int, bytes, str, int]]) -> dict[bytes, str]:
        """Return each digest's segment with the first claim that was not withdrawn."""
        withdrawn = {(digest, segment) for _, digest, segment, is_withdrawn in claims if is_withdrawn}
        owners: dict[bytes, str] = {}
        for _, digest, segment, _ in claims:
            if (digest, segment) not in withdrawn:
                owners.setdefault(digest, segment)
        return owners

    def _forget(self, claim: int) -> None:
        """Now and then, drop the partitions whose claims are all too old. The newest stays: it has the last number."""
        if claim % _FORGET_EVERY == 0:
            old = self._store.query(_OLD_PARTITIONS, {"retention_s": self._retention_s}).result_rows
            for (number,) in old:
                self._store.client().command(f"ALTER TABLE payload_claims DROP PARTITION {int(number)}")
