"""Labels of requests, as senders chose them. What breaks a bound is cut or left out, and the request says how many.

region eu, n 3, "a b" x, tags [1, 2]    region eu, n "3", _cut "2"
"""

from __future__ import annotations

import hashlib
from collections.abc import MutableSequence
from typing import Any, Final

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from tokentrail.semconv import LABEL_NAME, LABEL_PREFIX, LONGEST_LABEL, MOST_LABELS

IN_BYTES: Final = LABEL_PREFIX.encode()
"""A message without it has no label."""
CUT: Final = f"{LABEL_PREFIX}_cut"
"""The label that says how many were left out or shortened."""


def bound_labels(request: Any) -> bool:
    """Bound the labels of each span and resource of a request of traces; tell whether anything was changed."""
    changed = False
    for resource_spans in request.resource_spans:
        changed |= bound(resource_spans.resource.attributes)
        for scope_spans in resource_spans.scope_spans:
            for span in scope_spans.spans:
                changed |= bound(span.attributes)
    return changed


def bound(attributes: MutableSequence[KeyValue]) -> bool:
    """Bound the labels among attributes, of which the first of a name counts; tell whether any was changed."""
    told = [one for one in attributes if one.key.startswith(LABEL_PREFIX)]
    if len(told) <= MOST_LABELS and all(map(_is_good, told)) and len({one.key for one in told}) == len(told):
        return False
    kept: dict[str, str] = {}
    seen: set[str] = set()
    cut = 0
    for one in told:
        value = _text(one.value)
        if value == "" or one.key in seen:
            continue
        seen.add(one.key)
        if value is None or not _has_name(one.key) or len(kept) == MOST_LABELS:
            cut += 1
            continue
        kept[one.key] = value if len(value) <= LONGEST_LABEL else _shortened(value)
        cut += len(value) > LONGEST_LABEL
    for place in range(len(attributes) - 1, -1, -1):
        if attributes[place].key.startswith(LABEL_PREFIX):
            del attributes[place]
    if cut:
        kept[CUT] = str(cut)
    attributes.extend(KeyValue(key=key, value=AnyValue(string_value=value)) for key, value in kept.items())
    return True


def _is_good(one: KeyValue) -> bool:
    return 0 < len(one.value.string_value) <= LONGEST_LABEL and _has_name(one.key)


def _has_name(key: str) -> bool:
    return key == CUT or LABEL_NAME.fullmatch(key, len(LABEL_PREFIX)) is not None


def _text(value: AnyValue) -> str | None:
    """The text of a value; None for one that is no text, number or truth."""
    match value.WhichOneof("value"):
        case "string_value":
            return value.string_value
        case "bool_value":
            return "true" if value.bool_value else "false"
        case "int_value":
            return str(value.int_value)
        case "double_value":
            return repr(value.double_value)
        case _:
            return None


def _shortened(value: str) -> str:
    digits = hashlib.sha256(value.encode()).hexdigest()[:16]
    return f"{value[: LONGEST_LABEL - 17]}…{digits}"
