"""The steady reading of a stream: by when an SLO promises each token, and which tokens came later.

Under TTFT 500 ms and TPOT 100 ms, the first token is due after 500 ms, the second after 600 ms, the third after 700 ms.
To hold a token back never makes one come in time: TPOT and the longest gap can be moved by that, lateness cannot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from collector.ask.times import SECOND_NS
from collector.base.answer import Answer
from collector.slo.model import Slo


class Deadlines(Answer):
    """The tokens of a request against an SLO that promises TTFT and TPOT: the k-th after TTFT + k · TPOT, k from 0."""

    slo: str
    tokens: int
    """Tokens whose time is known."""
    late_tokens: int
    longest_late_s: float
    """How much later than its deadline the latest token came; 0: none was late."""
    latest_index: int | None
    """The place of that token in its answer."""


def deadlines(slos: Sequence[Slo], tokens: Sequence[Mapping[str, Any]]) -> list[Deadlines]:
    """The deadlines of these SLOs for the rows of the query `request_tokens`; none where no token's time is known."""
    known = [(token["token_index"], token["offset_ns"]) for token in tokens if token["offset_ns"] is not None]
    if not known:
        return []
    index, offset = np.array(known, np.int64).T
    by_slo = []
    for slo in slos:
        ttft, tpot = slo.thresholds.ttft, slo.thresholds.tpot
        if ttft is None or tpot is None:
            continue
        late = offset - ttft - index * tpot
        latest = int(late.argmax())
        is_late = late[latest] > 0
        by_slo.append(
            Deadlines(
                slo=slo.name,
                tokens=len(late),
                late_tokens=int(np.count_nonzero(late > 0)),
                longest_late_s=late[latest].item() / SECOND_NS if is_late else 0.0,
                latest_index=index[latest].item() if is_late else None,
            )
        )
    return by_slo
