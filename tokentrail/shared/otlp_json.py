"""One request as OTLP in JSON: its span, its phases and its tokens, which any OTLP receiver takes at /v1/traces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from tokentrail import semconv
from tokentrail.shared.formatting import instant
from tokentrail.version import __version__

_ROOM: Final = 1 << 64
_KINDS: Final = {"server": 2, "client": 3}
_ERROR: Final = {"code": 2}
_NS: Final = 1_000_000_000
_COUNTS: Final = {
    semconv.INPUT_TOKENS: "input_tokens",
    semconv.OUTPUT_TOKENS: "output_tokens",
    semconv.CACHED_TOKENS: "cached_tokens",
    semconv.REASONING_TOKENS: "reasoning_tokens",
    semconv.PREEMPTIONS: "preemptions",
}


def spans(detail: Mapping[str, Any]) -> dict[str, Any]:
    """The body of an export, from an answer of `/requests/{trace_id}`."""
    row = detail["request"]
    resource = {
        semconv.SERVICE_NAME: row["service"],
        semconv.SERVICE_INSTANCE_ID: row["instance"],
        semconv.VARIANT: row["variant"],
        semconv.ENGINE: row["engine"],
    }
    scope = {"name": semconv.SCOPE_NAME, "version": __version__}
    all_spans = [_request(row), *_phases(detail), *_tokens(detail)]
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": _attributes(resource)},
                "scopeSpans": [{"scope": scope, "schemaUrl": semconv.SCHEMA_URL, "spans": all_spans}],
            }
        ]
    }


def _request(row: Mapping[str, Any]) -> dict[str, Any]:
    known = {
        semconv.OPERATION_NAME: row["operation"],
        semconv.REQUEST_MODEL: row["model"],
        semconv.RESPONSE_ID: row["request_id"],
        semconv.TENANT: row["tenant"],
        semconv.SLO_CLASS: row["slo_class"],
        semconv.STATUS: row["status"],
        semconv.FINISH_REASON: row["finish_reason"],
        semconv.ERROR_TYPE: row["error_type"],
        semconv.TIME_TO_FIRST_TOKEN: row["ttft_s"],
        **{name: row[column] for name, column in _COUNTS.items()},
    }
    made = _span(row, f"{row['operation']} {row['model']}".strip(), row["span_id"], 0.0, row["e2e_s"] or 0.0, known)
    failed = {"status": _ERROR} if row["status"] == "error" else {}
    return {**made, "parentSpanId": "", "kind": _KINDS.get(row["vantage"], 1), **failed}


def _phases(detail: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Their ids are made of the request's, and never those of its tokens: these are multiples of a large number."""
    row = detail["request"]
    for place, phase in enumerate(detail["phases"], 1):
        span_id = f"{(int(row['span_id'], 16) ^ (place << 40)) % _ROOM:016x}"
        known = {semconv.PHASE_NAME: phase["name"]}
        yield _span(row, semconv.PHASE_SPAN, span_id, phase["offset_s"], phase["duration_s"], known)


def _tokens(detail: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    row = detail["request"]
    for token in detail["tokens"]:
        if token["offset_s"] is None:
            continue
        span_id = (int(row["span_id"], 16) + (token["index"] + 1) * semconv.TOKEN_ID_STRIDE) % _ROOM
        known = {semconv.TOKEN_INDEX: token["index"], semconv.STEP: token["step"]}
        begin = token["offset_s"] - token["duration_s"]
        yield _span(row, semconv.TOKEN_SPAN, f"{span_id:016x}", begin, token["duration_s"], known)


def _span(
    row: Mapping[str, Any], name: str, span_id: str, offset_s: float, duration_s: float, known: Mapping[str, Any]
) -> dict[str, Any]:
    start = _unix_ns(row["start"]) + round(offset_s * _NS)
    return {
        "traceId": row["trace_id"],
        "spanId": span_id,
        "parentSpanId": row["span_id"],
        "name": name,
        "kind": 1,
        "startTimeUnixNano": str(start),
        "endTimeUnixNano": str(start + round(duration_s * _NS)),
        "attributes": _attributes(known),
    }


def _unix_ns(text: str) -> int:
    """Exact: a float of unix seconds knows 200 ns alone."""
    whole, _, digits = text.removesuffix("Z").partition(".")
    return int(instant(f"{whole}Z").timestamp()) * _NS + int(f"{digits:0<9}" or 0)


def _attributes(known: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": name, "value": _value(value)} for name, value in known.items() if value not in (None, "")]


def _value(value: str | int | float) -> dict[str, Any]:
    if isinstance(value, str):
        return {"stringValue": value}
    return {"intValue": str(value)} if isinstance(value, int) else {"doubleValue": value}
