"""OTLP/JSON: Protobuf's JSON mapping, except that trace and span ids are hexadecimal."""

from __future__ import annotations

import base64
import json
from typing import Any, Final

from google.protobuf import json_format

from collector.receive.errors import MalformedError

_PARSE_ERRORS: Final = (ValueError, TypeError, AttributeError, OverflowError, RecursionError, SystemError)
"""Errors of protobuf's JSON parser beside its own: 1e400 as an integer overflows, and a lone surrogate in a field's
name is a SystemError."""
_ID_FIELDS: Final = {"traceId", "spanId", "parentSpanId", "trace_id", "span_id", "parent_span_id"}


def to_protobuf(body: bytes, request: type[Any]) -> bytes:
    """Encode an OTLP/JSON body as a Protobuf request of this class; raises `MalformedError` that says the mistake."""
    try:
        document = json.loads(body, object_hook=_ids_to_base64)
        if not isinstance(document, dict):
            msg = "it is not a JSON object"
            raise TypeError(msg)
        message = json_format.ParseDict(document, request(), ignore_unknown_fields=True)
        encoded: bytes = message.SerializeToString(deterministic=True)
    except (*_PARSE_ERRORS, json_format.ParseError) as error:
        msg = f"the body is not OTLP/JSON: {error}"
        raise MalformedError(msg) from error
    return encoded


def _ids_to_base64(fields: dict[str, Any]) -> dict[str, Any]:
    """Convert the ids of one JSON object. Its keys are field names of OTLP: attribute names are values of `key`."""
    for name in _ID_FIELDS & fields.keys():
        try:
            fields[name] = base64.b64encode(bytes.fromhex(fields[name])).decode()
        except (ValueError, TypeError) as error:
            msg = f"{name} {str(fields[name])[:64]!r} is not hexadecimal ({error})"
            raise ValueError(msg) from None
    return fields
