"""Divides what a piece of an answer brings into text, thoughts and neither. All APIs and gateways are read by this."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from tokentrail.clients.fields import draws, of, size, texts, word

SAID: Final = frozenset(
    {"content", "text", "tool_calls", "function_call", "refusal", "audio", "image", "images", "partial_json"}
)
"""Fields of a delta or a message, any of which holds output that its reader sees."""
THOUGHT: Final = frozenset(
    {"reasoning_content", "reasoning", "reasoning_text", "reasoning_details", "thinking", "thinking_blocks", "thoughts"}
)
"""Fields that hold reasoning. Gateways send several of them, with the same text."""
_MARKS: Final = frozenset(
    {"thought", "is_thought", "thinking", "is_thinking", "reasoning", "is_reasoning", "type", "content_type", "channel",
     "extra_content"}
)  # fmt: skip
"""Fields beside the content that may say that it is reasoning."""
_OF_THOUGHTS: Final = re.compile(r"(?:.*[._-])?(?:thinking|thoughts?|reasoning|analysis)(?:[._-].*)?", re.IGNORECASE)
_NO_TEXT: Final = frozenset({"reasoning.encrypted", "redacted_thinking", "signature"})
"""Types of pieces that hold no text: somebody has encrypted it."""
_NOT_WHOLE: Final = ("reasoning.summary", "reasoning.encrypted", "summary_text")
"""Types of pieces of reasoning in place of which the model made other tokens."""
_BEAT: Final = re.compile(r"(?:.*[._\W])?(?:keep[-_ ]?alive|heart[-_ ]?beat|ping)(?:[._\W].*)?", re.IGNORECASE)
_USUAL: Final = frozenset(
    {"id", "object", "created", "model", "choices", "type", "delta", "index", "item_id", "output_index",
     "content_index", "sequence_number", "logprobs", "usage", "system_fingerprint", "service_tier",
     "obfuscation", "provider"}
)  # fmt: skip
_NAMES: Final = (*SAID, *THOUGHT, *_MARKS)


class Pieces(NamedTuple):
    """Bytes of text and of thoughts. `summarised`: the thoughts are not those that the model made."""

    said: int
    thought: int
    summarised: bool = False


def divide(delta: Any, mark: Any = None, *, begins: bool = False) -> Pieces | None:
    """What a delta or a message brings; None: neither text nor thoughts. `mark`: what may mark it beside itself.

    `begins`: nothing came before. A text in which nothing can be seen is no output then, but a sign of life.

        {"content": "a"}                                         one byte of text
        {"reasoning": "ab", "reasoning_details": […"ab"…]}       two bytes of thoughts
        {"content": [{"type": "thinking", "thinking": [{"text": "a"}]}, {"type": "text", "text": "b"}]}    one of both
        {"content": "a", "thought": true}                        one byte of thoughts
    """
    fields = _fields(delta)
    said = [piece for name, piece in fields.items() if name in SAID and piece]
    thoughts = [_with_text(piece) for name, piece in fields.items() if name in THOUGHT and piece]
    summarised = any(word(of(one, "type")) in _NOT_WHOLE for one in _listed(fields.get("reasoning_details")))
    inner: list[Any] = []
    if any(isinstance(piece, list | tuple) for piece in said):
        listed = _listed(fields.get("content"))
        inner = [one for one in listed if _is_thought(_fields(one))]
        said = [piece for piece in said if piece is not fields.get("content")] if inner else said
        said += [one for one in listed if one not in inner] if inner else []
    elif said and (_is_thought(fields) or (mark is not None and _is_thought(_fields(mark)))):
        thoughts, said = [*thoughts, said], []
    thought = max((size(piece) for piece in thoughts), default=0) + size(_with_text(inner))
    if not said and not thought:
        return Pieces(0, 0, summarised) if summarised else None
    if begins and not _draw((*said, *thoughts, *inner)):
        return None
    return Pieces(sum(map(size, said)), thought, summarised)


def is_heartbeat(event: Any) -> bool:
    """Whether an event is marked as a sign of life: by its item or its id, or by a field of that name."""
    fields = event if isinstance(event, dict) else getattr(event, "__pydantic_extra__", None) or {}
    if any(names_a_heartbeat(word(of(event, name))) for name in ("item_id", "id")):
        return True
    return any(value and names_a_heartbeat(str(name)) for name, value in fields.items() if name not in _USUAL)


def names_a_heartbeat(name: str) -> bool:
    """Whether a name says so: `ping`, `heartbeat`, `stream.keep-alive`, and not `pinging`."""
    return bool(_BEAT.fullmatch(name))


def _fields(value: Any) -> Mapping[str, Any]:
    """The members of a mapping or an object, by name."""
    if isinstance(value, Mapping):
        return value
    if value is None or isinstance(value, str | bytes | list | tuple | int | float):
        return {}
    if hasattr(value, "__pydantic_fields__"):  # a field that it does not have would cost a microsecond
        return {**vars(value), **(getattr(value, "__pydantic_extra__", None) or {})}
    return {name: given for name in _NAMES if (given := of(value, name)) is not None}


def _is_thought(fields: Mapping[str, Any]) -> bool:
    if _MARKS.isdisjoint(fields):
        return False
    if (extra := fields.get("extra_content")) is not None and of(of(extra, "google"), "thought") is True:
        return True
    if any(_OF_THOUGHTS.fullmatch(word(fields.get(name))) for name in ("type", "content_type", "channel")):
        return True
    names = ("thought", "is_thought", "thinking", "is_thinking", "reasoning", "is_reasoning")
    return any(fields.get(name) is True for name in names)


def _listed(value: Any) -> Iterable[Any]:
    return value if isinstance(value, list | tuple) else ()


def _with_text(value: Any) -> Any:
    """A piece of thoughts without those that somebody encrypted."""
    if isinstance(value, list | tuple):
        return [one for one in value if word(of(one, "type")) not in _NO_TEXT]
    return value


def _draw(pieces: Iterable[Any]) -> bool:
    """Whether something of it can be seen. A piece without any text may be a picture."""
    for piece in pieces:
        found = [*texts(piece)]
        if (piece and not found) or any(map(draws, found)):
            return True
    return False
