"""Which requests are kept, decided at their end, and how many each stands for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tokentrail._build.spans import Emitted
from tokentrail._record.request import RequestTrail
from tokentrail.semconv import TIME_TO_FIRST_VISIBLE_TOKEN, TOKEN_ID_STRIDE, Status

NEVER: Final = (1 << 63) - 1
"""A stamp after all others."""
_FOREVER_S: Final = 1e10
_IDS: Final = 1 << 64


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The latencies (seconds) that an SLO allows to the requests of a class, of a tenant, or of both. An empty class or
    tenant stands for all of them.
    """

    slo_class: str = ""
    tenant: str = ""
    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None
    gap_s: float | None = None
    first_visible_s: float | None = None

    def __post_init__(self) -> None:
        most: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__ if name.endswith("_s")}
        given = {name: value for name, value in most.items() if value is not None}
        if not given:
            raise ValueError(f"thresholds need at least one of {', '.join(most)}")
        for name, value in given.items():
            if not isinstance(value, int | float) or not 0 < value < float("inf"):
                raise ValueError(f"the threshold {name}={value!r} is not a positive number of seconds")


@dataclass(frozen=True, slots=True)
class Sampling:
    """Keeps every request that failed, was preempted or missed a threshold, and the others at a rate.

    `rate` holds for all tenants, and `tenants` replaces it for single ones. Of the requests that are kept at the rate,
    the part `token_rate` gets token spans; the others keep their counts and times. All `thresholds` of a request's
    class and tenant apply to it, and missing one of them is enough.

    A kept request stands for `weight` requests: 1 for those that are always kept, 1 / rate for the others. Sums of
    weights are unbiased estimates of counts over all requests (Horvitz and Thompson, 1952).
    """

    rate: float = 1.0
    tenants: Mapping[str, float] = field(default_factory=dict)
    token_rate: float = 1.0
    thresholds: Sequence[Thresholds] = ()

    def __post_init__(self) -> None:
        for name, rate in {"rate": self.rate, "token_rate": self.token_rate, **self.tenants}.items():
            if not isinstance(rate, int | float) or not 0 <= rate <= 1:
                raise ValueError(f"the sampling rate {name}={rate!r} is not between 0 and 1")

    @property
    def keeps_all(self) -> bool:
        """Whether nothing is left out."""
        return min(self.rate, self.token_rate, *self.tenants.values()) == 1

    def is_chosen(self, request: RequestTrail) -> bool:
        """Whether the rate keeps this request. Every process decides alike, since its span id decides."""
        return _draw(request) < self._rate(request)

    def records_tokens(self, request: RequestTrail) -> bool:
        """Whether the tokens of this request become spans."""
        return _draw(request) < self._rate(request) * self.token_rate

    def weight(
        self, request: RequestTrail, emitted: Emitted, end: int, *, preempted: bool, announced: bool
    ) -> float | None:
        """The number of requests that this one stands for, or None when it is left out. It ended at `end` (unix ns).

        A request that was announced as late, and turned out to be in time because its stamps came late, is kept, so
        that its end is known. Its weight is 0, because the requests that the rate keeps stand for it too.
        """
        ended = request.ended
        failed = ended is not None and ended.status is Status.ERROR
        tpot_ns = emitted.tpot_of(ended) if ended else emitted.tpot_ns()
        visible_s = ended.attributes.get(TIME_TO_FIRST_VISIBLE_TOKEN) if ended else None
        slow = any(
            (tpot_ns is not None and _over(tpot_ns, given.tpot_s))
            or (isinstance(visible_s, float) and _over(visible_s * 1e9, given.first_visible_s))
            for given in self._of(request)
        )
        if failed or preempted or slow or self._is_late(request, emitted, end):
            return 1.0
        if self.is_chosen(request):
            return 1 / self._rate(request)
        return 0.0 if announced else None

    def deadlines(self, request: RequestTrail) -> tuple[int, int, int]:
        """The last stamps (unix ns) for the first token and for the end that are in time, and the longest wait between
        two tokens (ns). TPOT is certain at the end only. No token can be seen before the first.
        """
        arrival, given = request.started.arrival_ns, self._of(request)

        def least(*most_s: float | None) -> int:
            return min(int(min([s for s in most_s if s is not None], default=_FOREVER_S) * 1e9), NEVER)

        first = least(*(s for one in given for s in (one.ttft_s, one.first_visible_s)))
        whole, gap = least(*(one.e2e_s for one in given)), least(*(one.gap_s for one in given))
        return min(arrival + first, NEVER), min(arrival + whole, NEVER), gap

    def _is_late(self, request: RequestTrail, emitted: Emitted, end: int) -> bool:
        """Whether TTFT, E2E or a wait between tokens of a request that ended at `end` is over a threshold. A request that
        ended without a token waited for its first.
        """
        first_most, most, most_gap = self.deadlines(request)
        gap, _ = emitted.longest_gap(request.ended.status if request.ended else Status.OK, end)
        waited = emitted.tokens > 0 and gap > most_gap
        return waited or (emitted.first if emitted.tokens else end) > first_most or end > most

    def _of(self, request: RequestTrail) -> list[Thresholds]:
        """The thresholds of a request's class and tenant."""
        classes, tenants = ("", request.started.slo_class), ("", request.started.tenant)
        return [given for given in self.thresholds if given.slo_class in classes and given.tenant in tenants]

    def _rate(self, request: RequestTrail) -> float:
        return self.tenants.get(request.started.tenant, self.rate)


def _over(ns: float, most_s: float | None) -> bool:
    return most_s is not None and ns > most_s * 1e9


def _draw(request: RequestTrail) -> float:
    """A number in [0, 1), spread evenly over requests. It comes from the span id, since OpenTelemetry's ratio sampler
    looks at the trace id: the two decide independently.
    """
    return (request.span_id * TOKEN_ID_STRIDE % _IDS >> 11) / (1 << 53)
