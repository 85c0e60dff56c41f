"""A request as text, with which another process goes on with it."""

from __future__ import annotations

import json
from numbers import Integral, Real
from typing import Any, Final

from opentelemetry.trace import SpanContext, SpanKind, TraceFlags, TraceState

from tokentrail._encode.encode import text
from tokentrail._record.arguments import RequestStart
from tokentrail._record.request import RequestTrail

_VERSION: Final = 1
_PLAIN: Final = ("arrival_ns", "operation", "model", "provider", "request_id", "tenant", "slo_class", "input_tokens")


def dumps(request: RequestTrail) -> str:
    """One line of JSON: the ids of a request, and the arguments of its start if it is sampled."""
    said: dict[str, Any] = {
        "version": _VERSION,
        "trace_id": f"{request.trace_id:032x}",
        "span_id": f"{request.span_id:016x}",
        "sampled": request.sampled,
    }
    if request.sampled:
        started, parent = request.started, request.started.parent
        said |= {name: getattr(started, name) for name in _PLAIN} | {
            "kind": started.kind.name,
            "parent": parent and [f"{parent.trace_id:032x}", f"{parent.span_id:016x}", parent.is_remote],
            "tracestate": started.trace_state.to_header() if started.trace_state else "",
            "attributes": {str(key): value for key, value in started.attributes.items()},
            "marks": request.marks,
        }
    return json.dumps(said, separators=(",", ":"), default=_plain)


def loads(text: str) -> tuple[int, int, RequestStart | None, list[Any]]:
    """Trace id, span id, start (None: not sampled) and marks. Raises `ValueError`, `KeyError` and `TypeError`."""
    said = json.loads(text)
    if said["version"] != _VERSION:
        raise ValueError(f"version {said['version']} of a handle")
    trace_id, span_id = int(said["trace_id"], 16), int(said["span_id"], 16)
    if not said["sampled"]:
        return trace_id, span_id, None, []
    started = RequestStart(
        **{name: said[name] for name in _PLAIN},
        kind=SpanKind[said["kind"]],
        parent=_parent(said["parent"]),
        trace_state=TraceState.from_header([said["tracestate"]]) if said["tracestate"] else None,
        attributes=said["attributes"],
    )
    return trace_id, span_id, started, [(phase, at) for phase, at in said["marks"]]


def _plain(value: object) -> object:
    """NumPy's numbers become Python's, and other objects text."""
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else text(value)


def _parent(said: list[Any] | None) -> SpanContext | None:
    if said is None:
        return None
    trace_id, span_id, is_remote = said
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote, TraceFlags(TraceFlags.SAMPLED))
