"""Weights of sampled spans: OpenTelemetry's consistent samplers write their threshold into the trace state.

vendor=x,ot=th:c;rv:d29d6a7215ced0    0xc0000000000000 of 2**56 are left out: one span stands for 4
ot=p:3;r:5                            2**3 = 8, as the conventions had it before
"""

from __future__ import annotations

import re
from typing import Any, Final

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tokentrail.semconv import SAMPLING_WEIGHT

IN_BYTES: Final = b"ot="
"""A message without it has no threshold."""
_MEMBER: Final = re.compile(r"(?:^|,)\s*ot=([^,]*)")
_THRESHOLD: Final = re.compile(r"(?:^|;)\s*th:([0-9a-f]{1,14})(?:;|\s*$)")
_POWER: Final = re.compile(r"(?:^|;)\s*p:([0-9]{1,2})(?:;|\s*$)")
_ALL: Final = 1 << 56
_LARGEST_POWER: Final = 62


def weigh_spans(request: Any) -> bool:
    """Give each sampled span of a request of traces its weight; tell whether any got one."""
    weighed = [
        weigh(span)
        for resource_spans in request.resource_spans
        for scope_spans in resource_spans.scope_spans
        for span in scope_spans.spans
        if span.trace_state
    ]
    return any(weighed)


def weigh(span: Span) -> bool:
    """Give a span its weight as an attribute, unless its sender did, or it stands for itself."""
    weight = weight_of(span.trace_state)
    if weight is None or weight == 1 or any(one.key == SAMPLING_WEIGHT for one in span.attributes):
        return False
    span.attributes.add(key=SAMPLING_WEIGHT).value.double_value = weight
    return True


def weight_of(trace_state: str) -> float | None:
    """How many spans one with this trace state stands for; None: nobody tells."""
    member = _MEMBER.search(trace_state)
    if member is None:
        return None
    if threshold := _THRESHOLD.search(member[1]):
        return _ALL / (_ALL - int(threshold[1].ljust(14, "0"), 16))
    if (power := _POWER.search(member[1])) and int(power[1]) <= _LARGEST_POWER:
        return float(1 << int(power[1]))
    return None
