"""Reads the requests to the recorded APIs."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from sys import float_info
from typing import Any, Final, NamedTuple

from tokentrail import semconv
from tokentrail.clients.fields import count, text

MAX_READ_BYTES: Final = 8 << 20
"""A larger request passes without being read: its model is not known."""


class Api(NamedTuple):
    """A recorded API. `asks_usage`: a stream tells its usage only when the request asks for it."""

    operation: str
    provider: str
    asks_usage: bool = False


_APIS: Final = {
    "/chat/completions": Api("chat", "openai", asks_usage=True),
    "/completions": Api("text_completion", "openai", asks_usage=True),
    "/responses": Api("chat", "openai"),
    "/v1/messages": Api("chat", "anthropic"),
}
"""Ends of the paths of POST requests that are recorded. All others pass unrecorded."""
_NUMBERS: Final = {
    "temperature": semconv.REQUEST_TEMPERATURE,
    "top_p": semconv.REQUEST_TOP_P,
    "top_k": semconv.REQUEST_TOP_K,
}
_LARGEST: Final = 1 << 63
_LIMITS: Final = ("max_completion_tokens", "max_output_tokens", "max_tokens")


@dataclass(slots=True)
class Asked:
    """A request as far as it could be read. `body` goes to the upstream; `unread` is the reason why it was not read."""

    body: bytes
    model: str = ""
    several: bool = False
    attributes: dict[str, Any] = field(default_factory=dict)
    labels: dict[str, Any] = field(default_factory=dict)
    unread: str = ""


def api_of(method: str, path: str) -> Api | None:
    """The API of a request; None for one that passes unrecorded. `path` has no query. Slashes behind it say nothing."""
    if method != "POST":
        return None
    path = path.rstrip("/")
    return next((api for end, api in _APIS.items() if path.endswith(end)), None)


def read(api: Api, body: bytes, *, ask_usage: bool) -> Asked:
    """Reads a request. Its body stays as it is, unless `ask_usage` has a stream tell its usage."""
    if len(body) > MAX_READ_BYTES:
        return Asked(body, unread="too_large")
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        return Asked(body, unread="malformed")
    if not isinstance(said, dict):
        return Asked(body, unread="malformed")
    asked = Asked(body, model=text(said.get("model")))
    streams = said.get("stream") is True
    asked.attributes[semconv.REQUEST_STREAM] = streams
    for name, key in _NUMBERS.items():
        value = said.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= float_info.max:
            asked.attributes[key] = float(value)
    if (limit := count(*(said.get(name) for name in _LIMITS))) is not None:
        asked.attributes[semconv.REQUEST_MAX_TOKENS] = limit
    choices = count(said.get("n")) or 1
    if choices > 1:
        asked.attributes[semconv.CHOICE_COUNT] = choices
    asked.labels = _labels(said, choices)
    asked.several = choices * _prompts(said.get("prompt")) > 1
    options = said.get("stream_options")
    asks = ask_usage and api.asks_usage and streams and isinstance(options, dict | None)
    if asks and "include_usage" not in (options or {}):
        said["stream_options"] = {**(options or {}), "include_usage": True}
        asked.body = json.dumps(said, separators=(",", ":")).encode()
    return asked


def _labels(said: dict[str, Any], choices: int) -> dict[str, Any]:
    """What is special about a request: several answers, log-probabilities, tools, a format, a priority, how much it may
    reason, and the conversation and the prompt of its caller's that it names.
    """
    wanted = said.get("response_format") or _member(said.get("text"), "format")  # of Chat Completions, of Responses
    form = text(_member(wanted, "type"))
    conversation, prompt = said.get("conversation"), said.get("prompt")
    effort = said.get("reasoning_effort") or _member(said.get("reasoning"), "effort")
    return {
        "n": choices if choices > 1 else None,
        "logprobs": _plain(said.get("logprobs")),
        "tools": bool(said.get("tools")) or None,
        "response_format": None if form == "text" else form,
        "priority": _plain(said.get("priority")),
        "reasoning_level": text(effort or _member(said.get("output_config"), "effort")) or None,
        "conversation_id": text(_member(conversation, "id") or conversation) or None,
        "previous_response_id": text(said.get("previous_response_id")) or None,
        "prompt_name": text(_member(prompt, "id")) or None,
        "prompt_version": text(_member(prompt, "version")) or None,
    }


def _member(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def _plain(value: Any) -> Any:
    """A number that fits a label, or true; None for anything else."""
    return value if isinstance(value, int | float) and value is not False and abs(value) < _LARGEST else None


def _prompts(prompt: Any) -> int:
    """How many prompts a request for completions has: a text or a list of token ids is one."""
    return len(prompt) if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int) else 1
