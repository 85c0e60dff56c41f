"""Reads the answers of four APIs: OpenAI's chat completions, completions and responses, and Anthropic's messages.

An event is one chunk of a stream, or the body of an answer that was not streamed. It is a mapping that was parsed from
JSON, or an object of one of the official clients. No event is trusted: a field of the wrong type is not known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from tokentrail.clients.fields import count, of, reason, size, text, word
from tokentrail.clients.usage import Usage
from tokentrail.semconv import OTHER_ERROR

CONTENT_FIELDS: Final = ("content", "tool_calls", "refusal", "function_call", "audio")
"""Fields of a chat delta, any of which holds output of the model."""
REASONING_FIELDS: Final = ("reasoning_content", "reasoning")
"""Fields of a chat delta that hold reasoning. Gateways send both, with the same text."""
MESSAGE_FIELDS: Final = ("text", "partial_json")
"""The first of a delta of Anthropic's messages. A `signature` is no output of the model."""
MAX_CHOICES: Final = 128
_NOT_WHOLE: Final = ("reasoning.summary", "reasoning.encrypted")
"""Types of OpenRouter's `reasoning_details` in place of which the model made other tokens."""


class Output(NamedTuple):
    """Output of one choice: its index (0 is the only one), and the bytes of its text and of its reasoning. Output that
    has neither may be no token.
    """

    choice: int = 0
    said: int = 0
    thought: int = 0


class Answer:
    """The facts that the events of one answer have told so far. None and "" mean: not told.

    `complete`: an event said that the answer is over. `error_type` is that of an error inside the answer. `thinks`: the
    model reasons. `summarised`: what arrives of that is a summary. `left_out`: a choice was beyond `MAX_CHOICES`.
    """

    def __init__(self) -> None:
        self.response_id = self.model = self.error_type = ""
        self.complete = self.thinks = self.summarised = self.left_out = False
        self.reasons: dict[int, str] = {}
        self.usage = Usage()

    def read(self, event: Any) -> Sequence[Output]:
        """Takes an event, and returns the output that it brought."""
        if isinstance(event, str | bytes):
            return (Output(said=size(event)),) if event else ()
        kind = word(of(event, "type"))
        if error := of(event, "error"):
            self.fail(event if isinstance(error, str | bool) else error)
        if (choices := of(event, "choices")) is not None:
            self._identify(event)
            return self._chat(event, choices if isinstance(choices, list) else ())
        if error:
            return ()
        if kind.startswith("response."):
            return self._response_event(kind, event)
        if kind in _MESSAGE_EVENTS:
            return self._message_event(kind, event)
        if kind == "message":
            self._identify(event)
            self.usage.add(of(event, "usage"))
            self._stop(of(event, "stop_reason"))
            return (Output(),)
        if of(event, "object") == "response":
            return self._response(event)
        if kind == "error" or of(event, "object") == "error":  # the latter from vLLM before 0.10
            self.fail(event)
        if kind == "chunk":  # openai's `client.chat.completions.stream` wraps them
            return self.read(of(event, "chunk"))
        if of(of(event, "data"), "choices") is not None:  # Mistral's client wraps them
            return self.read(of(event, "data"))
        if kind or isinstance(event, Mapping):
            self.usage.add(of(event, "usage"))
            return ()
        return (Output(),)

    def _chat(self, event: Any, choices: Sequence[Any]) -> Sequence[Output]:
        """[{"index": 1, "delta": {"content": "a"}, "finish_reason": null}] gives (Output(1, 1, 0),).

        Moonshot tells the usage in the choice, and Groq in a field of its own.
        """
        for place in (event, choices[0] if choices else None, of(event, "x_groq")):
            self.usage.add(of(place, "usage"))
        outputs = []
        for choice in choices:
            index = count(of(choice, "index")) or 0
            if index >= MAX_CHOICES:
                self.left_out = True
                continue
            if known := reason(of(choice, "finish_reason")):
                self.reasons[index] = known
                self.complete = True
                if known == "error":
                    self.error_type = self.error_type or type_of_error(of(choice, "error")) or OTHER_ERROR
            delta = of(choice, "delta") or of(choice, "message")
            pieces = [of(choice, "text"), *(of(delta, name) for name in CONTENT_FIELDS)]
            thoughts = [of(delta, name) for name in REASONING_FIELDS]
            if details := of(delta, "reasoning_details"):
                self._detail(details)
            if any(pieces) or any(thoughts):
                said = sum(size(piece) for piece in pieces if piece)
                outputs.append(Output(index, said, max(size(thought) for thought in thoughts)))
        return outputs

    def _detail(self, details: Any) -> None:
        kinds = [of(detail, "type") for detail in details] if isinstance(details, list) else ()
        self.summarised = self.summarised or any(kind in _NOT_WHOLE for kind in kinds)

    def _response_event(self, kind: str, event: Any) -> Sequence[Output]:
        if (response := of(event, "response")) is not None:
            self._response(response)
        if not kind.endswith(".delta") or not (delta := of(event, "delta")):
            return ()
        if kind == "response.reasoning_summary_text.delta":
            self.summarised = True
            return (Output(),)
        if kind == "response.reasoning_text.delta":
            return (Output(thought=size(delta)),)
        return (Output(said=size(delta)),)

    def _response(self, response: Any) -> Sequence[Output]:
        self._identify(response)
        self.usage.add(of(response, "usage"))
        status = word(of(response, "status"))
        if status in ("completed", "incomplete", "failed", "cancelled"):
            self.complete = True
            self.reasons[0] = reason(of(of(response, "incomplete_details"), "reason")) or status
        if status == "failed":
            self.fail(of(response, "error"))
        return (Output(),) if of(response, "output") else ()  # one in the background has none yet

    def _message_event(self, kind: str, event: Any) -> Sequence[Output]:
        if kind == "message_start":
            message = of(event, "message")
            self._identify(message)
            self.usage.add(of(message, "usage"), is_begun=True)
        elif kind == "message_delta":
            self.usage.add(of(event, "usage"))
            self._stop(of(of(event, "delta"), "stop_reason"))
        elif kind == "message_stop":
            self.complete = True
        elif kind == "content_block_start":
            block = of(event, "content_block")
            self.thinks = self.thinks or word(of(block, "type")) in ("thinking", "redacted_thinking")
            return (Output(said=size(of(block, "name"))),) if of(block, "name") else ()  # a call of a tool
        elif kind == "content_block_delta":
            delta = of(event, "delta")
            said, thought = sum(size(of(delta, name)) for name in MESSAGE_FIELDS), size(of(delta, "thinking"))
            return (Output(0, said, thought),) if said or thought else ()
        return ()

    def _stop(self, told: Any) -> None:
        if known := reason(told):
            self.reasons[0] = known
            self.complete = True

    def fail(self, error: Any) -> None:
        """The answer told of an error, and is over."""
        self.error_type = type_of_error(error) or OTHER_ERROR
        self.complete = True

    def _identify(self, source: Any) -> None:
        self.response_id = self.response_id or text(of(source, "id"))
        self.model = self.model or text(of(source, "model"))


def type_of_error(error: Any) -> str:
    """The type of an error that a server told within a success, or else its code; "" for none.

    The type `error` is that of the event, in streams of responses. An error may lie within another, as anthropic's
    client gives it. TGI has `error_type`, and gateways may have a number alone, mostly that of an HTTP status.
    """
    if (inner := of(error, "error")) and not isinstance(inner, str | bool):
        error = inner
    kind, code = word(of(error, "type")), of(error, "code")
    kind = "" if kind == "error" else kind or word(of(error, "error_type"))
    return kind or word(str(code) if type(code) is int else code) or word(of(error, "status"))


_MESSAGE_EVENTS: Final = frozenset(
    {"message_start", "message_delta", "message_stop", "content_block_start", "content_block_delta",
     "content_block_stop", "ping"}
)  # fmt: skip
