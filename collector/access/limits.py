"""Limits of one tenant: spans and bytes in a second, and distinct models, services and other names."""

from __future__ import annotations

import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from collector.otlp import runs
from tokentrail import semconv

_FORGET_S: Final = 3600.0
"""A name that was not sent for this long makes room for another."""
NAMES_OF_A_KEY: Final = 1000
"""Twice the places that `/metrics` has for all tenants."""
_LONGEST: Final = 256
"""Longer names count as one when they begin alike."""
_RESOURCE_NAMES: Final = {
    "service.name": "services",
    "service.instance.id": "instances",
    semconv.VARIANT: "variants",
    semconv.TENANT: "tenants",
}
_SPAN_NAMES: Final = {
    "gen_ai.request.model": "models",
    "gen_ai.response.model": "models",
    semconv.TENANT: "tenants",
    semconv.SLO_CLASS: "slo_classes",
}
_MANY: Final = frozenset({semconv.TOKEN_SPAN, semconv.PHASE_SPAN, semconv.STEP_SPAN})
"""Spans without such names, of which there are many."""


class LimitedError(RuntimeError):
    """The tenant is over a limit; the client should try again after `retry_after_s`."""

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class _Rate:
    """An allowance that grows by `per_s` each second, up to one second's worth. It may be overdrawn by one payload.

    100 a second; a payload of 250 arrives at 0 s and is taken: −150 are left, and the next is taken after 1.5 s.
    """

    def __init__(self, per_s: float, now_s: float) -> None:
        self.per_s = per_s
        self._left = per_s
        self._at_s = now_s

    def wait_s(self, now_s: float) -> float:
        """Seconds until the next payload is taken; 0 at once."""
        self._left = min(self.per_s, self._left + (now_s - self._at_s) * self.per_s)
        self._at_s = now_s
        return 0.0 if self._left > 0 else (1 - self._left) / self.per_s

    def spend(self, amount: int) -> None:
        """Take from the allowance."""
        self._left -= amount


@dataclass(frozen=True)
class TenantLimits:
    """The limits of every tenant; 0 is none."""

    spans_per_s: float = 0
    bytes_per_s: float = 0
    names: int | None = None
    """Most distinct models, services, instances, variants, SLO classes and tenants, of each. None: `NAMES_OF_A_KEY` for
    the key of a tenant, and no limit for others."""


def _count_nothing(_tenant: str, _limit: str) -> None:
    pass


@dataclass
class Limiter:
    """Holds each tenant to its limits. Callers without a tenant of their own count together as one."""

    limits: TenantLimits = TenantLimits()
    count: Callable[[str, str], None] = _count_nothing
    """Called with tenant and limit when a payload is refused."""
    monotonic_s: Callable[[], float] = time.monotonic
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _rates: dict[str, dict[str, _Rate]] = field(default_factory=dict)
    _names: dict[tuple[str, str], dict[str, float]] = field(default_factory=lambda: defaultdict(dict))

    def check_rate(self, tenant: str) -> None:
        """Raise `LimitedError` while the tenant's allowance is used up."""
        with self._lock:
            for unit, rate in self._rates_of(tenant).items():
                wait_s = rate.wait_s(self.monotonic_s())
                if wait_s > 0:
                    msg = f"{_who(tenant)} sends more than {rate.per_s:g} {unit} a second; try again later"
                    self.count(tenant, unit)
                    raise LimitedError(msg, retry_after_s=math.ceil(wait_s))

    def spend(self, tenant: str, *, spans: int, size: int) -> None:
        """Take a payload from the tenant's allowance."""
        with self._lock:
            for unit, rate in self._rates_of(tenant).items():
                rate.spend(spans if unit == "spans" else size)

    def check_names(self, tenant: str, payload: bytes, request: type[Any]) -> None:
        """Remember the names in a payload; raise `LimitedError`, and remember none, when one of them is too many."""
        most = self.limits.names
        if most is None:
            most = NAMES_OF_A_KEY if tenant else 0
        if not most:
            return
        seen = _names(payload, request, is_stamped=bool(tenant))
        now_s = self.monotonic_s()
        with self._lock:
            for kind in {kind for kind, _ in seen}:
                known = self._names[tenant, kind]
                names = {name for k, name in seen if k == kind}
                if len(known.keys() | names) > most:
                    _forget(known, now_s - _FORGET_S)
                if len(known.keys() | names) > most:
                    msg = (
                        f"{_who(tenant)} has more than {most} {kind} in an hour, among them "
                        f"{min(names - known.keys())[:100]!r}; is an id sent in place of a name?"
                    )
                    self.count(tenant, kind)
                    raise LimitedError(msg, retry_after_s=60)
            for kind, name in seen:
                self._names[tenant, kind][name] = now_s

    def _rates_of(self, tenant: str) -> dict[str, _Rate]:
        if tenant not in self._rates:
            units = {"spans": self.limits.spans_per_s, "bytes": self.limits.bytes_per_s}
            self._rates[tenant] = {u: _Rate(per_s, self.monotonic_s()) for u, per_s in units.items() if per_s}
        return self._rates[tenant]


def _who(tenant: str) -> str:
    return f"tenant {tenant!r}" if tenant else "the senders without a tenant of their own"


def _forget(known: dict[str, float], before_s: float) -> None:
    for name in [name for name, seen_s in known.items() if seen_s < before_s]:
        del known[name]


def _names(payload: bytes, request: type[Any], *, is_stamped: bool) -> set[tuple[str, str]]:
    """Kind and value of each name in a request: of the resources of any signal, and of spans.

    A stamped request has the tenant of its key alone. Spans are parsed only if one of their names is somewhere in the
    bytes: tokens, which are the most, have none.
    """
    of_spans = {key: kind for key, kind in _SPAN_NAMES.items() if not (is_stamped and key == semconv.TENANT)}
    if any(key.encode() in payload for key in of_spans):
        message = request.FromString(payload)
        messages = getattr(message, message.DESCRIPTOR.fields_by_number[1].name)
        spans = (span for one in messages for scope in getattr(one, "scope_spans", ()) for span in scope.spans)
        names = {name for span in spans if span.name not in _MANY for name in _chosen(span.attributes, of_spans)}
        resources = [one.resource for one in messages]
    else:
        names, resources = set(), [*_resources(payload, request)]
    names |= {name for resource in resources for name in _chosen(resource.attributes, _RESOURCE_NAMES)}
    return {(kind, name) for kind, name in names if not (is_stamped and kind == "tenants")}


def _resources(payload: bytes, request: type[Any]) -> Iterator[Resource]:
    """Yield the resources of a request without parsing what they have."""
    try:
        for number, wire_type, _, begin, end in runs.fields(payload, 0, len(payload)):
            if (number, wire_type) == (1, runs.LEN):
                for inner, inner_type, _, first, last in runs.fields(payload, begin, end):
                    if (inner, inner_type) == (1, runs.LEN):
                        yield Resource.FromString(payload[first:last])
    except runs.NotUniformError:  # a field that OTLP does not have, as a group
        message = request.FromString(payload)
        for one in getattr(message, message.DESCRIPTOR.fields_by_number[1].name):
            yield one.resource


def _chosen(attributes: Any, kinds: dict[str, str]) -> Iterator[tuple[str, str]]:
    for attribute in attributes:
        kind = kinds.get(attribute.key)
        if kind and attribute.value.string_value:
            yield kind, attribute.value.string_value[:_LONGEST]
