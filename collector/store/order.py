"""A total order of the inserts that several collectors make into one table."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from typing import Any, Final

from collector.store.store import Store

_PAUSE_S: Final = 0.05
_TRIES_OF_A_LOST_NUMBER: Final = 200
"""10 s. A number that the store refuses for so long, without having a claim of it, was lost when the store crashed."""
_FORGET_EVERY: Final = 1000
_PARTITION: Final = 65536
"""The tables are partitioned by this many claims."""


class Order:
    """Numbers the claims of a table; a claim is one insert, and its rows have its number in the column `claim`.

    Claim 7 is inserted with the token "claim 7" after claim 6 was seen, and the store takes a token once:

        A and B see claim 6     both insert claim 7, and the store takes A's
        B reads claim 7         it is A's, so B inserts claim 8
    """

    def __init__(self, store: Store, table: str) -> None:
        self._store = store
        self._table = table
        self._newest = -1
        self._lost_numbers = 0

    def next_number(self) -> int:
        """The number to try. The caller inserts with `settings`, and then reads the claim that the store has."""
        sql = f"SELECT max(claim) FROM {self._table}"
        newest = int(self._store.query(sql, settings=self.read_settings).result_rows[0][0])
        if newest == self._newest:  # another collector's claim of the next number is not visible yet
            self._lost_numbers += 1
            time.sleep(_PAUSE_S * random.uniform(0.5, 1.5))  # noqa: S311  # collectors must not keep pace
        else:
            self._newest, self._lost_numbers = newest, 0
        return newest + 1 + self._lost_numbers // _TRIES_OF_A_LOST_NUMBER

    @property
    def read_settings(self) -> Mapping[str, Any]:
        """Settings of queries: any replica answers with all claims."""
        return self._store.layout.decision_settings

    def settings(self, token: str) -> dict[str, Any]:
        """Settings of an insert: the store takes a token once."""
        decides = self._store.layout.decision_settings
        return {"async_insert": 0, "deduplicate_insert": "enable", **decides, "insert_deduplication_token": token}

    def forget(self, claim: int, *, retention_s: int) -> None:
        """Now and then, drop the partitions of old claims. The newest stays: it has the last number."""
        if claim % _FORGET_EVERY:
            return
        old = f"""
            SELECT intDiv(claim, {_PARTITION}) AS number
            FROM {self._table}
            WHERE number < (SELECT intDiv(max(claim), {_PARTITION}) FROM {self._table})
            GROUP BY number
            HAVING max(claimed_at) < now() - {{retention_s:UInt32}}
        """
        for (number,) in self._store.query(old, {"retention_s": retention_s}).result_rows:
            self._store.client().command(f"ALTER TABLE {self._table} DROP PARTITION {int(number)}")
