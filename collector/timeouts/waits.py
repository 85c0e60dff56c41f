"""The four waits of each request: how long, and whether what was waited for came, was given up, or never came."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from collector.timeouts.survival import Floats, Ints

Codes = npt.NDArray[np.uint8]
WaitName = Literal["first_token", "first_visible", "gap", "e2e"]
WAITS: Final[tuple[WaitName, ...]] = ("first_token", "first_visible", "gap", "e2e")
OK, ERROR, GIVEN_UP, OPEN, DEAD = range(5)
"""How a request ended. GIVEN_UP: its client did not wait. DEAD: lost, or in flight at a process that makes no step."""
LEFT_OUT, ANSWERED, CENSORED, FAILED, ENDLESS = range(5)
"""How a wait ended. CENSORED: broken off by the client, or going on. FAILED: an error came. ENDLESS: nothing came."""
_SILENT: Final = 2
"""Who was silent for so many times the longest wait that was answered is dead."""
_LEAST_ANSWERED: Final = 100


@dataclass(frozen=True)
class Requests:
    """One value per request in each array. Waits are µs: 0 there was none, NaN nobody tells."""

    began_ms: npt.NDArray[np.uint32]
    """Since the window began."""
    kind: npt.NDArray[np.uint16]
    """The place of its model, class, vantage, operation and process in a list of them."""
    ended: Codes
    ttft_us: Floats
    first_visible_us: Floats
    gap_us: Floats
    e2e_us: Floats
    input_tokens: Floats
    """NaN: not known."""
    reasons: Codes
    """0: no token was reasoning; 1: some were; 2: nobody tells."""
    weight: Floats

    def where(self, chosen: Any) -> Requests:
        """These requests alone: by a mask, by their places, or a slice."""
        places = np.flatnonzero(chosen) if isinstance(chosen, np.ndarray) and chosen.dtype == bool else chosen
        return Requests(**{one.name: getattr(self, one.name)[places] for one in fields(self)})

    def some(self, most: int) -> Requests:
        """At most so many of them: of more, every second, third, … as they were read."""
        return self.where(slice(None, None, -(-self.size // most))) if self.size > most else self

    @property
    def size(self) -> int:
        """How many there are."""
        return len(self.ended)


@dataclass(frozen=True)
class Waits:
    """One kind of wait of each request."""

    us: Floats
    kind: Codes

    @property
    def longest_us(self) -> float:
        """The longest that was answered; 0 for none."""
        answered = self.us[self.kind == ANSWERED]
        return float(answered.max()) if len(answered) else 0.0


def waits_of(requests: Requests) -> Mapping[WaitName, Waits]:
    """The waits of requests of one group, of which those that were silent for too long are dead."""
    first = _with_silent(_until(requests, requests.ttft_us, requests.ttft_us))
    visible = _with_silent(_until(requests, requests.first_visible_us, requests.ttft_us))
    gap = _with_silent(_gaps(requests))
    silent = (first.kind == ENDLESS) | (gap.kind == ENDLESS)
    known = requests.e2e_us > 0
    by_end = _BY_END[requests.ended]
    whole = np.where((by_end == CENSORED) & silent, ENDLESS, by_end)
    return {
        "first_token": first,
        "first_visible": visible,
        "gap": gap,
        "e2e": Waits(requests.e2e_us, np.where(known, whole, LEFT_OUT).astype(np.uint8)),
    }


_BY_END: Final = np.array([ANSWERED, FAILED, CENSORED, CENSORED, ENDLESS], np.uint8)
_WITHOUT_TOKEN: Final = np.array([LEFT_OUT, FAILED, CENSORED, CENSORED, ENDLESS], np.uint8)


def _until(requests: Requests, us: Floats, first_us: Floats) -> Waits:
    """The wait for a token. Where one came and nobody tells whether it was visible, the wait is longer than that."""
    came = us > 0
    unclear = np.isnan(us) & (first_us > 0) & (requests.ended != OK)
    none = us == 0
    kind = np.full(len(us), LEFT_OUT, np.uint8)
    kind[came], kind[unclear], kind[none] = ANSWERED, CENSORED, _WITHOUT_TOKEN[requests.ended[none]]
    return Waits(np.where(came, us, np.where(unclear, first_us, requests.e2e_us)), kind)


def _gaps(requests: Requests) -> Waits:
    known = requests.gap_us > 0
    return Waits(requests.gap_us, np.where(known, _BY_END[requests.ended], LEFT_OUT).astype(np.uint8))


def _with_silent(waits: Waits) -> Waits:
    """The waits, of which those that were broken off after twice the longest answered one would never have ended."""
    if np.count_nonzero(waits.kind == ANSWERED) < _LEAST_ANSWERED:
        return waits
    silent = (waits.kind == CENSORED) & (waits.us > _SILENT * waits.longest_us)
    return Waits(waits.us, np.where(silent, ENDLESS, waits.kind).astype(np.uint8))


def blocks_of(began_ms: npt.NDArray[np.uint32], count: int) -> Ints:
    """The block of time in which each request began, of as many equal ones between the first and the last."""
    if not len(began_ms):
        return np.zeros(0, np.int64)
    first = int(began_ms.min())
    width = (int(began_ms.max()) - first) // count + 1
    return (began_ms.astype(np.int64) - first) // width
