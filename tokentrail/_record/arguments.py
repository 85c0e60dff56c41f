"""The arguments of a request's start and end, and their checks. A value that can be used is kept; the others are
reported as misuse and left out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from numbers import Integral, Real
from typing import Any, Final

from opentelemetry.trace import SpanContext, SpanKind, TraceState

from tokentrail import semconv
from tokentrail._encode.encode import text
from tokentrail._host.clock import floored
from tokentrail.semconv import Status

IDENTITY: Final = (
    semconv.OPERATION_NAME,
    semconv.PROVIDER_NAME,
    semconv.REQUEST_MODEL,
    semconv.TENANT,
    semconv.SLO_CLASS,
)
"""The attributes by which requests are told apart: many requests share their values."""

AttributeValue = str | int | float | bool | Sequence[str]
Carrier = Mapping[str, str] | Mapping[bytes, bytes] | Iterable[tuple[str | bytes, str | bytes]]
"""HTTP headers: a mapping, or pairs of text or bytes as ASGI gives them."""
Labels = Mapping[str, str | int | float | bool | None]
"""Labels by name; None: not given."""
Misuse = Callable[[str, object], None]
"""Reports a mistake (a short constant text) and the value."""

_LARGEST: Final = 1 << 63
MAX_TOKENS: Final = 1 << 16
"""Tokens that one request can get at once; a larger count is a mistake of the caller."""


@dataclass(slots=True)
class RequestStart:
    """The arguments of `Trail.start_request`, and the parent span that its carrier names. Nobody changes it once the
    request is made; its type is not frozen, since a frozen one takes three times as long to make.
    """

    arrival_ns: int
    operation: str
    model: str
    provider: str
    request_id: str
    tenant: str
    slo_class: str
    input_tokens: int | None
    kind: SpanKind
    parent: SpanContext | None
    trace_state: TraceState | None
    attributes: Mapping[str, Any]


def identity_of(started: RequestStart) -> tuple[Any, ...]:
    """The values of `IDENTITY`; None: not given."""
    return (
        started.operation,
        started.provider or None,
        started.model,
        started.tenant or None,
        started.slo_class or None,
    )


def start_attributes(started: RequestStart) -> dict[str, Any]:
    """The attributes of a request that arrives, which samplers decide on."""
    known = dict(zip(IDENTITY, identity_of(started), strict=True)) | {
        semconv.RESPONSE_ID: started.request_id or None,
        semconv.INPUT_TOKENS: started.input_tokens,
    }
    return {**started.attributes, **{key: value for key, value in known.items() if value is not None}}


@dataclass(slots=True)
class RequestEnd:
    """The arguments of `RequestTrail.end`, checked. None: not known. Nobody changes it, as `RequestStart`."""

    at_ns: int
    status: Status
    error_type: str
    finish_reasons: tuple[str, ...]
    input_tokens: int | None
    output_tokens: int | None
    cached_tokens: int | None
    cache_creation_tokens: int | None
    reasoning_tokens: int | None
    response_model: str
    response_id: str
    attributes: Mapping[str, Any]


def stamp(value: int | None, clock: Callable[[], int], misuse: Misuse) -> int:
    """A stamp for the wire (unix ns); now for None and for values that are no number."""
    if value is None:
        return clock()
    try:
        return floored(value)
    except (TypeError, ValueError, OverflowError):
        misuse("a stamp that is no number", value)
        return clock()


def stamps(values: Sequence[int], misuse: Misuse) -> tuple[int, ...]:
    """Stamps for the wire, without those that are no number, and at most `MAX_TOKENS`."""
    kept = []
    try:
        for value in values:
            try:
                kept.append(floored(value))
            except (TypeError, ValueError, OverflowError):
                misuse("a stamp that is no number", value)
    except Exception:  # also one of a generator that makes the stamps
        misuse("stamps that are no sequence", values)
    if len(kept) > MAX_TOKENS:
        misuse(f"stamps after the first {MAX_TOKENS}", len(kept))
    return tuple(kept[:MAX_TOKENS])


def count(value: object, name: str, misuse: Misuse, *, most: int = 2**63 - 1) -> int | None:
    """A number of tokens from 0 to `most`, or None."""
    if value is None or (type(value) is int and 0 <= value <= most):
        return value
    if isinstance(value, Integral) and 0 <= int(value) <= most:
        return int(value)
    misuse(f"{name} that is no count", value)
    return None


UNKNOWN: Final = -1
"""In place of a count or a number that is not known."""
Usage = tuple[int | None, int | None, int | None, int | None, int | None]
"""Input, output, cached, cache-creation and reasoning tokens."""


def usage(given: tuple[object, ...], started: int | None, misuse: Misuse) -> Usage:
    """The five counts of a request's end; `started` are the input tokens that its start gave.

    Cached tokens and those written to the cache are parts of the input tokens, reasoning tokens of the output tokens.
    Where a part is more than its whole, one of the two is wrong and nobody knows which: both are not known. The whole
    is then `UNKNOWN` and not None, since the start or the recorded tokens would take the place of that.
    """
    names = ("input_tokens", "output_tokens", "cached_tokens", "cache_creation_tokens", "reasoning_tokens")
    inputs, outputs, *parts = (count(value, name, misuse) for value, name in zip(given, names, strict=True))
    wholes = (started if inputs is None else inputs,) * 2 + (outputs,)
    wrong: set[int] = set()
    for i, (part, whole) in enumerate(zip(parts, wholes, strict=True)):
        if part is not None and whole is not None and part > whole:
            misuse(f"{names[i + 2]} that are more than {names[i // 2]}", part)
            parts[i] = None
            wrong.add(i // 2)
    cached, created, reasoning = parts
    return UNKNOWN if 0 in wrong else inputs, UNKNOWN if 1 in wrong else outputs, cached, created, reasoning


def status(value: Status, misuse: Misuse) -> Status:
    """A status; ERROR for one that is unknown, since it may not count as a success."""
    if type(value) is Status:
        return value
    try:
        return Status(value)
    except ValueError:
        misuse("an unknown status", value)
        return Status.ERROR


def kind(value: object, misuse: Misuse) -> SpanKind:
    """A kind of span; SERVER for values that are none."""
    if isinstance(value, SpanKind):
        return value
    misuse("a kind that is no SpanKind", value)
    return SpanKind.SERVER


def word(value: object) -> str:
    """A text; "" for None, 0 and False, which clients have for a field without a value."""
    if type(value) is str:
        return value
    return "" if value is None or value is False or (type(value) is int and value == 0) else text(value)


def words(value: str | Sequence[str] | None, misuse: Misuse) -> tuple[str, ...]:
    """Words; one text is one word, and empty ones are left out."""
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,) if value else ()
    try:
        return tuple([str(one) for one in value if one])
    except Exception:
        misuse("words that are no sequence", value)
        return ()


def mapping(value: Mapping[str, Any] | None, misuse: Misuse) -> dict[str, Any]:
    """A copy of attributes; empty for None."""
    if value is None:
        return {}
    try:
        return dict(value)
    except Exception:
        misuse("attributes that are no mapping", value)
        return {}


def with_labels(attributes: dict[str, Any], given: Labels | None, misuse: Misuse) -> dict[str, Any]:
    """The attributes, and behind them the labels as attributes. A label is left out whose name or value cannot be used,
    and those after the first 16; a long value is cut.

    {"tier": "gold", "n": 3, "region": None} adds {"tokentrail.label.tier": "gold", "tokentrail.label.n": "3"}
    """
    told: dict[str, str] = {}
    for name, value in mapping(given, misuse).items():
        if value is None:
            continue
        key, told_value = _label_key(name) if isinstance(name, str) else "", _label_text(value)
        if not key or told_value is None:
            misuse(f"a label with a name or a {type(value).__name__} that none has", name)
        elif len(told) == semconv.MOST_LABELS:
            misuse(f"labels after the first {semconv.MOST_LABELS}", name)
        elif told_value:
            if len(told_value) > semconv.LONGEST_LABEL:
                misuse(f"a label of more than {semconv.LONGEST_LABEL} characters", name)
                told_value = _cut(told_value)
            told[key] = told_value
    return attributes | told


@lru_cache(maxsize=1024)
def _label_key(name: str) -> str:
    return semconv.LABEL_PREFIX + name if semconv.LABEL_NAME.fullmatch(name) else ""


def _label_text(value: object) -> str | None:
    """The text of a label; None for a value that is no text, number or truth."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return text(value)
    if isinstance(value, Integral):
        return str(int(value)) if abs(int(value)) < _LARGEST else None
    return repr(float(value)) if isinstance(value, Real) else None


def _cut(told_value: str) -> str:
    """As the collector would cut it: two long values that begin alike stay two."""
    digits = hashlib.sha256(told_value.encode()).hexdigest()[:16]
    return f"{told_value[: semconv.LONGEST_LABEL - 17]}…{digits}"


def headers(carrier: Carrier | None, misuse: Misuse) -> dict[str, str]:
    """Headers with lower-case names. Entries that are no pair of texts are left out.

    [(b"Traceparent", b"00-…"), (b"x", None)] gives {"traceparent": "00-…"} and one misuse
    """
    if not carrier:
        return {}
    kept: dict[str, str] = {}
    try:
        pairs: Iterable[Any] = carrier.items() if hasattr(carrier, "items") else carrier
        for pair in pairs:
            match pair:
                case (str() | bytes() as name, (str() | bytes() as value) | [str() | bytes() as value, *_]):
                    kept.setdefault(_decoded(name).lower(), _decoded(value))
                case _:
                    misuse("a header that is no pair of texts", pair)
    except TypeError:
        misuse("a carrier that holds no headers", carrier)
    return kept


def _decoded(value: str | bytes) -> str:
    """A header's text. aiohttp decodes bytes that are not UTF-8 to halves of surrogate pairs, by which a propagator
    fails: they become question marks.
    """
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return value if value.isascii() else value.encode(errors="replace").decode()
