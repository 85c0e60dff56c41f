"""Fields of other people's objects: mappings that were parsed from JSON, or objects of the official clients.

None of them is trusted: a value of the wrong type is not known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final
from unicodedata import category

from tokentrail.shared.finish_reasons import NOTHING

WORD: Final = re.compile(r"[\w.:-]{1,64}")
"""An error type or a finish reason. Longer texts and sentences could hold content or keys, and are not kept."""
MAX_COUNT: Final = 1 << 31
_OUTPUT: Final = (
    "text", "content", "function", "custom", "name", "arguments", "input", "transcript", "data", "image_url", "url",
    "b64_json", "refusal", "summary", "thinking", "thought",
)  # fmt: skip
"""Fields within a piece of output that the model wrote: words, calls of tools, sound and pictures."""
_DEEPEST: Final = 4
"""Levels of the deepest piece: a list of tool calls, a call, its function, its arguments."""


def of(value: Any, name: str) -> Any:
    """A field of a mapping or an object; None when there is none."""
    if (
        type(value) is dict
    ):  # from JSON, and eight times for each chunk: an abstract class's check costs three times more
        return value.get(name)
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def text(value: Any) -> str:
    """A text of at most 256 characters; "" for other values."""
    return value[:256] if isinstance(value, str) else ""


def word(value: Any) -> str:
    """A text that is one word; "" for other values."""
    return value if isinstance(value, str) and WORD.fullmatch(value) else ""


def reason(value: Any) -> str:
    """A finish reason. Some servers write that there is none yet as a word: `null`, or Python's `None`. One of several
    words, such as "stop sequence", is joined.
    """
    known = word("_".join(value.split())) if isinstance(value, str) else ""
    return "" if known.lower() in NOTHING else known


def texts(value: Any, levels: int = _DEEPEST) -> Iterator[str]:
    """The texts in a piece of output."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple) and levels:
        for one in value:
            yield from texts(one, levels - 1)
    elif value is not None and levels and not isinstance(value, bytes):
        for name in _OUTPUT:
            yield from texts(of(value, name), levels - 1)


def draws(text: str) -> bool:
    """Whether a text has a character that can be seen: no blank, no control, no character without a width."""
    return any(category(one)[0] not in "ZC" or category(one) in ("Cn", "Co") for one in text)


def count(*values: Any) -> int | None:
    """The first value that is a number of tokens, or None."""
    return next((value for value in values if type(value) is int and 0 <= value < MAX_COUNT), None)


def size(value: Any, levels: int = _DEEPEST) -> int:
    """Bytes of the text in a piece of output: of a text, of a tool call, of a list of pieces."""
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, str):
        return len(value) if value.isascii() else len(value.encode(errors="replace"))
    if value is None or not levels:
        return 0
    if isinstance(value, list | tuple):
        return sum(size(one, levels - 1) for one in value)
    return sum(size(of(value, name), levels - 1) for name in _OUTPUT)
