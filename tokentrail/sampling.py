"""Which requests are kept, decided at their end, and how many each stands for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tokentrail.request import RequestTrail
from tokentrail.semconv import TOKEN_ID_STRIDE, Status
from tokentrail.spans import Emitted

_IDS: Final = 1 << 64


@dataclass(frozen=True, slots=True)
class Sampling:
    """Keeps every request that failed, was preempted, or was slower than a threshold, and the others at a rate.

    `rate` is that of all tenants, `tenants` those of single ones. Of the requests that are kept at the rate, the part
    `token_rate` gets token spans; the others keep their counts and times. With SLOs of several classes, the strictest
    thresholds keep all misses.

    A kept request stands for `weight` requests: 1 for those that are always kept, 1 / rate for the others. Sums of
    weights are unbiased estimates of counts over all requests.
    """

    rate: float = 1.0
    tenants: Mapping[str, float] = field(default_factory=dict)
    token_rate: float = 1.0
    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None

    def __post_init__(self) -> None:
        for name, rate in {"rate": self.rate, "token_rate": self.token_rate, **self.tenants}.items():
            if not 0 <= rate <= 1:
                raise ValueError(f"the sampling rate {name}={rate} is not between 0 and 1")

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
        A request that was announced is kept, since nobody would learn of its end otherwise.
        """
        failed = request.ended is not None and request.ended.status is Status.ERROR
        if failed or preempted or self._is_late(request, emitted, end) or self._is_slow(emitted):
            return 1.0
        if self.is_chosen(request):
            return 1 / self._rate(request)
        return 1.0 if announced else None

    def announces(self, request: RequestTrail, emitted: Emitted, now: int) -> bool:
        """Whether a request under way is certain to be kept: nobody learns of the others, so that nobody waits for
        their end.
        """
        return self.is_chosen(request) or self._is_late(request, emitted, now)

    def _is_late(self, request: RequestTrail, emitted: Emitted, now: int) -> bool:
        arrival = request.started.arrival_ns
        first = emitted.first if emitted.tokens else now
        return _over(first - arrival, self.ttft_s) or _over(now - arrival, self.e2e_s)

    def _is_slow(self, emitted: Emitted) -> bool:
        return emitted.tokens > 1 and _over((emitted.last - emitted.first) / (emitted.tokens - 1), self.tpot_s)

    def _rate(self, request: RequestTrail) -> float:
        return self.tenants.get(request.started.tenant, self.rate)


def _over(ns: float, most_s: float | None) -> bool:
    return most_s is not None and ns > most_s * 1e9


def _draw(request: RequestTrail) -> float:
    """A number in [0, 1), spread evenly over requests. It comes from the span id, since OpenTelemetry's ratio sampler
    looks at the trace id: the two decide independently.
    """
    return request.span_id * TOKEN_ID_STRIDE % _IDS / _IDS
