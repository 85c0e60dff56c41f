"""OTLP/JSON: Protobuf's JSON mapping, except that trace and span ids are hexadecimal."""

from __future__ import annotations

import base64
import json
import re
from typing import Any, Final

from google.protobuf import json_format

from collector.otlp.errors import MalformedError, TooLargeError
from collector.otlp.parse_bombs import turn_to_parse

_PARSE_ERRORS: Final = (ValueError, TypeError, AttributeError, OverflowError, RecursionError, SystemError)
"""Errors of protobuf's JSON parser beside its own: 1e400 as an integer overflows, and a lone surrogate in a field's
name is a SystemError."""
_ID_FIELDS: Final = {"traceId", "spanId", "parentSpanId", "trace_id", "span_id", "parent_span_id"}
_MOST_OBJECTS: Final = 1_000_000
"""Ten thousand spans with fifteen attributes have 330,000. A brace in a text counts, too."""
_BYTES_FIELDS: Final = {"bytesValue", "bytes_value"}
_BASE64: Final = re.compile(r"[A-Za-z0-9+/_-]*={0,2}")
"""Protobuf's parser skips all other characters, and ends at the first `=`: `***` would be no bytes."""


def to_protobuf(body: bytes, request: type[Any]) -> bytes:
    """Encode an OTLP/JSON body as a Protobuf request of this class; raises `MalformedError` that says the mistake.

    Raises `TooLargeError` for a body with so many objects that it takes gigabytes and minutes to parse.
    """
    if len(body) > 2 * _MOST_OBJECTS and body.count(b"{") + body.count(b"[") > _MOST_OBJECTS:
        msg = f"the body has more than {_MOST_OBJECTS} JSON objects and arrays; send smaller batches, or Protobuf"
        raise TooLargeError(msg)
    with turn_to_parse(len(body)):
        return _encoded(body, request)


def _encoded(body: bytes, request: type[Any]) -> bytes:
    try:
        document = json.loads(body, object_hook=_bytes_as_base64)
        if not isinstance(document, dict):
            msg = "the body is not OTLP/JSON: it is not a JSON object"
            raise MalformedError(msg)
        message = json_format.ParseDict(document, request(), ignore_unknown_fields=True)
        encoded: bytes = message.SerializeToString()
    except MalformedError:
        raise
    except (*_PARSE_ERRORS, json_format.ParseError) as error:
        msg = f"the body is not OTLP/JSON: {_mistake(error)}"
        raise MalformedError(msg) from error
    return encoded


def _mistake(error: Exception) -> str:
    """Tell the sender its mistake. The text of the errors is about Python's objects; only the fields in it are useful.

    Failed to parse resourceSpans field: Failed to parse scopeSpans field: 'int' object is not iterable
    resourceSpans.scopeSpans has a value that does not fit its type
    """
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} in line {error.lineno}, column {error.colno}"
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start} is not UTF-8"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    fields = re.findall(r"(?:Failed to parse|repeated field) (\w+)", str(error))
    where = ".".join(dict.fromkeys(fields)) or "a field"
    return f"{where} has a value that does not fit its type"


def _bytes_as_base64(fields: dict[str, Any]) -> dict[str, Any]:
    """Convert the ids of one JSON object, and check its bytes. Its keys are field names of OTLP: attribute names are
    values of `key`.

    A null is an absent field, as Protobuf's JSON mapping has it, for example the parent of a root span.
    """
    for name in _ID_FIELDS & fields.keys():
        if fields[name] is None:
            continue
        try:
            fields[name] = base64.b64encode(bytes.fromhex(fields[name])).decode()
        except (ValueError, TypeError):
            raise _wrong(name, fields[name], "hexadecimal") from None
    for name in _BYTES_FIELDS & fields.keys():
        if isinstance(fields[name], str) and not _BASE64.fullmatch(fields[name]):
            raise _wrong(name, fields[name], "base64")
    return fields


def _wrong(name: str, value: Any, form: str) -> MalformedError:
    return MalformedError(f"the body is not OTLP/JSON: {name} {json.dumps(value)[:64]} is not {form}")
