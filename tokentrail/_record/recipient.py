"""Recipients of tokens: requests and their choices. The exporter thread finds their columns by their slot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from tokentrail._record import arguments
from tokentrail._record.arguments import Misuse

if TYPE_CHECKING:
    from tokentrail._record.request import Choice, RequestTrail

NO_SLOT: Final = 0
"""Slot of a request without recorded tokens."""
ENDED_SLOT: Final = 1
"""Slot of a request that has ended: a token that comes later is dropped and counted."""
FIRST_SLOT: Final = 2
FOREIGN_SLOT: Final = 1 << 62
"""Slot of a request that no trail has taken, such as a copy: its tokens are dropped and counted."""


class Chunk(NamedTuple):
    """Tokens that arrived without an engine step: one stamp (unix ns) each. `ended`: the request had ended before."""

    recipient: Recipient
    stamps: tuple[int, ...]
    ended: bool


class Host(NamedTuple):
    """The trail of a request, as far as the request calls it."""

    clock: Callable[[], int]
    on_end: Callable[[RequestTrail], object]
    on_leave: Callable[[RequestTrail], object]
    on_chunk: Callable[[Chunk], object]
    on_choice: Callable[[Choice], object]
    misuse: Misuse


class Recipient:
    """Gets tokens: a request, or one of its choices."""

    __slots__ = ("_host", "slot")

    sampled = True

    def __init__(self, host: Host) -> None:
        self.slot = FOREIGN_SLOT  # only the exporter thread changes it
        self._host = host

    def token(self, count: int = 1, at_ns: int | None = None) -> None:
        """Records `count` tokens that arrived together, outside of an engine step: one chunk of a stream."""
        host = self._host
        at = arguments.stamp(at_ns, host.clock, host.misuse)
        self._emit((at,) * (arguments.count(count, "tokens", host.misuse, most=arguments.MAX_TOKENS) or 0))

    def tokens(self, stamps_ns: Sequence[int]) -> None:
        """Records tokens that arrived outside of an engine step, one for each stamp, in order."""
        self._emit(arguments.stamps(stamps_ns, self._host.misuse))

    def _now_ns(self) -> int:
        return self._host.clock()

    def _emit(self, stamps: tuple[int, ...]) -> None:
        if stamps:
            self._host.on_chunk(Chunk(self, stamps, self.request.ended is not None))

    @property
    def request(self) -> RequestTrail:
        """The request itself."""
        raise NotImplementedError
