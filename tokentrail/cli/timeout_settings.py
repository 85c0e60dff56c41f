"""Time-outs as settings of clients and gateways.

A client that reads a stream waits for its next bytes: first for the first token, then for each other one. So its read
time-out is the longer of both, and the whole request has a time-out of its own. Connecting has one that no trail tells.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

_CONNECT_S: Final = 5.0
_LEAST_S: Final = 1.0
"""A shorter time-out cuts requests whenever the network sends something twice."""


@dataclass(frozen=True)
class Chosen:
    """The time-outs of a model in seconds. None: not decided."""

    model: str
    read_s: float | None
    """Between two arrivals of a stream, the first included."""
    whole_s: float | None
    fallbacks: Sequence[str] = ()
    """Other models to which a request may go."""

    @classmethod
    def of(cls, model: str, waits: Mapping[str, float], fallbacks: Sequence[str] = ()) -> Chosen:
        """By the time-outs of the four waits. Without that of gaps or first tokens, none between arrivals is known."""
        known = "first_token" in waits and "gap" in waits
        read_s = max(_LEAST_S, waits["first_token"], waits["gap"]) if known else None
        whole_s = max(_LEAST_S, waits["e2e"]) if "e2e" in waits else None
        return cls(model, read_s, whole_s, fallbacks)


def _python(package: str, client: str, one: Chosen) -> str:
    read_s = one.read_s or one.whole_s
    lines = ["import asyncio", "", f"from {package} import {client}, Timeout", ""]
    lines += [f"# {package} waits {read_s:g} s for each arrival of an answer; without stream=True for all of it."]
    if one.whole_s:
        lines.append(f"# A whole request: async with asyncio.timeout({one.whole_s:g}): ...")
    lines += [
        f"client = {client}(",
        f"    timeout=Timeout({read_s:g}, connect={_CONNECT_S:g}),",
        "    max_retries=1,",
        ")",
    ]
    return "\n".join(lines if one.whole_s else lines[2:]) + "\n"


def openai(one: Chosen) -> str:
    """The client of the package openai."""
    return _python("openai", "AsyncOpenAI", one)


def anthropic(one: Chosen) -> str:
    """The client of the package anthropic."""
    return _python("anthropic", "AsyncAnthropic", one)


def litellm(one: Chosen) -> str:
    """The YAML file of LiteLLM's proxy."""
    lines = ["model_list:", f"  - model_name: {_quoted(one.model)}", "    litellm_params:"]
    lines.append(f"      model: {_quoted(f'hosted_vllm/{one.model}')} # as your config has it")
    lines += [f"      timeout: {one.whole_s:g}"] if one.whole_s else []
    lines += [f"      stream_timeout: {one.read_s:g}"] if one.read_s else []
    if one.fallbacks:
        names = ", ".join(map(_quoted, one.fallbacks))
        lines += ["router_settings:", f"  fallbacks: [{{{_quoted(one.model)}: [{names}]}}]"]
    return "\n".join(lines) + "\n"


def envoy(one: Chosen) -> str:
    """A route of Envoy."""
    lines = ["route:", "  cluster: llm"]
    lines.append(f"  timeout: {one.whole_s:g}s" if one.whole_s else "  timeout: 0s # none: that of Envoy is 15 s")
    lines += [f"  idle_timeout: {one.read_s:g}s # of a stream without a byte"] if one.read_s else []
    return "\n".join(lines) + "\n"


def nginx(one: Chosen) -> str:
    """A location of nginx, which bounds the time between two arrivals and not the whole request."""
    read_s = one.read_s or one.whole_s or 0.0
    lines = ["proxy_http_version 1.1;", "proxy_buffering off;", f"proxy_connect_timeout {_CONNECT_S * 1000:.0f}ms;"]
    return "\n".join([*lines, f"proxy_read_timeout {read_s * 1000:.0f}ms;"]) + "\n"


def ai_sdk(one: Chosen) -> str:
    """A call of Vercel's AI SDK."""
    given = {"totalMs": one.whole_s, "chunkMs": one.read_s}
    shown = ", ".join(f"{name}: {round(seconds * 1000)}" for name, seconds in given.items() if seconds)
    lines = ["import { streamText, type LanguageModel } from 'ai';", ""]
    lines += ["export const answer = (model: LanguageModel, prompt: string) =>"]
    return "\n".join([*lines, f"  streamText({{ model, prompt, timeout: {{ {shown} }} }});"]) + "\n"


def _quoted(text: str) -> str:
    """A text of YAML, whatever is in it."""
    escaped = "".join(c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08x}" for c in text)
    return f'"{escaped}"'


SETTINGS: Final[Mapping[str, Callable[[Chosen], str]]] = {
    "openai": openai,
    "anthropic": anthropic,
    "litellm": litellm,
    "envoy": envoy,
    "nginx": nginx,
    "ai-sdk": ai_sdk,
}
"""What writes the settings of each client, by its name."""
