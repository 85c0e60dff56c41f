"""Reads the answers of four APIs: OpenAI's chat completions, completions and responses, and Anthropic's messages.

An event is one chunk of a stream, or the body of an answer that was not streamed. It is a mapping that was parsed from
JSON, or an object of one of the official clients. No event is trusted: a field of the wrong type is not known.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tokentrail.recipient import Recipient
from tokentrail.request import RequestTrail
from tokentrail.semconv import ARRIVALS, ARRIVED_TOKENS, OTHER_ERROR, Status

CONTENT_FIELDS: Final = (
    "content", "reasoning_content", "reasoning", "tool_calls", "refusal", "function_call", "audio"
)  # fmt: skip
"""Fields of a chat delta, any of which holds output of the model."""
REASONING_FIELDS: Final = ("reasoning_content", "reasoning")
"""Those of them that hold reasoning."""
MESSAGE_FIELDS: Final = ("text", "thinking", "partial_json")
"""The same of a delta of Anthropic's messages. A `signature` is no output of the model."""
WORD: Final = re.compile(r"[\w.:-]{1,64}")
"""An error type or a finish reason. Longer texts and sentences could hold content or keys, and are not kept."""
MAX_COUNT: Final = 1 << 31
MAX_CHOICES: Final = 128

Choices = Sequence[int]
"""Indices of the choices of a request (`n` > 1); 0 is the only one."""


class Answer:
    """The facts that the events of one answer have told so far. None and "" mean: not told.

    `complete`: an event said that the answer is over. `error_type` is that of an error inside the answer. `reasoned`:
    reasoning has arrived, token by token. `withheld`: there is reasoning that does not arrive so.
    """

    def __init__(self) -> None:
        self.response_id = self.model = self.error_type = ""
        self.complete = self.reasoned = self.withheld = False
        self.reasons: dict[int, str] = {}
        self.usage: dict[str, Any] = {}

    def read(self, event: Any) -> Choices:
        """Takes an event, and returns the choices that got output by it."""
        if isinstance(event, str | bytes):
            return (0,) if event else ()
        kind = word(of(event, "type"))
        if error := of(event, "error"):
            self.fail(error)
            return ()
        if (choices := of(event, "choices")) is not None:
            self._identify(event)
            self._use(of(event, "usage"))
            return self._chat(choices)
        if kind.startswith("response."):
            return self._response_event(kind, event)
        if kind in _MESSAGE_EVENTS:
            return self._message_event(kind, event)
        if kind == "message":
            self._identify(event)
            self._use(of(event, "usage"))
            return self._stop(of(event, "stop_reason"))
        if of(event, "object") == "response":
            return self._response(event)
        if kind == "error" or of(event, "object") == "error":  # the latter from vLLM before 0.10
            self.fail(event)
        if kind == "chunk":  # openai's `client.chat.completions.stream` wraps them
            return self.read(of(event, "chunk"))
        if of(of(event, "data"), "choices") is not None:  # Mistral's client wraps them
            return self.read(of(event, "data"))
        return () if kind or isinstance(event, Mapping) else (0,)

    def _chat(self, choices: Any) -> Choices:
        """[{"index": 1, "delta": {"content": "a"}, "finish_reason": null}] gives (1,)."""
        found = []
        for choice in choices if isinstance(choices, list) else ():
            index = count(of(choice, "index")) or 0
            if index >= MAX_CHOICES:
                continue
            if reason := word(of(choice, "finish_reason")):
                self.reasons[index] = reason
                self.complete = True
                if reason == "error":
                    self.error_type = self.error_type or OTHER_ERROR
            delta = of(choice, "delta") or of(choice, "message")
            self.reasoned = self.reasoned or any(of(delta, name) for name in REASONING_FIELDS)
            if of(choice, "text") or any(of(delta, name) for name in CONTENT_FIELDS):
                found.append(index)
        return found

    def _response_event(self, kind: str, event: Any) -> Choices:
        if (response := of(event, "response")) is not None:
            self._response(response)
        if not kind.endswith(".delta") or not of(event, "delta"):
            return ()
        self.reasoned = self.reasoned or kind == "response.reasoning_text.delta"
        self.withheld = self.withheld or kind == "response.reasoning_summary_text.delta"
        return (0,)

    def _response(self, response: Any) -> Choices:
        self._identify(response)
        self._use(of(response, "usage"))
        status = word(of(response, "status"))
        if status in ("completed", "incomplete", "failed", "cancelled"):
            self.complete = True
            self.reasons[0] = word(of(of(response, "incomplete_details"), "reason")) or status
        if status == "failed":
            self.fail(of(response, "error"))
        return (0,) if of(response, "output") else ()  # one in the background has none yet

    def _message_event(self, kind: str, event: Any) -> Choices:
        if kind == "message_start":
            message = of(event, "message")
            self._identify(message)
            self._use(of(message, "usage"))
            self.usage.pop("output_tokens", None)  # a placeholder: the tokens are told at the end
        elif kind == "message_delta":
            self._use(of(event, "usage"))
            self._stop(of(of(event, "delta"), "stop_reason"))
        elif kind == "message_stop":
            self.complete = True
        elif kind == "content_block_start":
            block = of(event, "content_block")
            self.withheld = self.withheld or word(of(block, "type")) in ("thinking", "redacted_thinking")
            return (0,) if of(block, "name") else ()  # a call of a tool
        elif kind == "content_block_delta":
            delta = of(event, "delta")
            self.reasoned = self.reasoned or bool(of(delta, "thinking"))
            return (0,) if any(of(delta, name) for name in MESSAGE_FIELDS) else ()
        return ()

    def _stop(self, reason: Any) -> Choices:
        if known := word(reason):
            self.reasons[0] = known
            self.complete = True
        return (0,)

    def fail(self, error: Any) -> None:
        """The answer told of an error, and is over. The type `error` is that of the event, in streams of responses."""
        kind = word(of(error, "type"))
        self.error_type = (kind if kind != "error" else "") or word(of(error, "code")) or OTHER_ERROR
        self.complete = True

    def _identify(self, source: Any) -> None:
        self.response_id = self.response_id or text(of(source, "id"))
        self.model = self.model or text(of(source, "model"))

    def _use(self, usage: Any) -> None:
        """Takes the counts of a usage object. Those of a later event go before those of an earlier one.

        Anthropic's `input_tokens` are those that no cache held, and OpenTelemetry's are all. xAI's `completion_tokens`
        are those without reasoning, as its total shows, and OpenTelemetry's `output_tokens` are all.
        """
        if usage is None:
            return
        read, made = count(of(usage, "cache_read_input_tokens")), count(of(usage, "cache_creation_input_tokens"))
        given = count(of(usage, "prompt_tokens"), of(usage, "input_tokens"))
        inputs, outputs = (of(usage, f"{name}_tokens_details") for name in ("prompt", "completion"))
        inputs, outputs = inputs or of(usage, "input_tokens_details"), outputs or of(usage, "output_tokens_details")
        answered = count(of(usage, "completion_tokens"), of(usage, "output_tokens"))
        reasoning = count(of(outputs, "reasoning_tokens"))
        if answered and reasoning and of(usage, "total_tokens") == (given or 0) + answered + reasoning:
            answered += reasoning
        told = {
            "input_tokens": None if given is None else given + (read or 0) + (made or 0),
            "output_tokens": answered,
            "cached_tokens": count(read, of(inputs, "cached_tokens")),
            "cache_creation_tokens": made,
            "reasoning_tokens": reasoning,
        }
        self.usage.update({name: value for name, value in told.items() if value is not None})


_MESSAGE_EVENTS: Final = frozenset(
    {"message_start", "message_delta", "message_stop", "content_block_start", "content_block_delta",
     "content_block_stop", "ping"}
)  # fmt: skip


class Recording:
    """Records one answer as it arrives: each event with output is an arrival, and the counts are those that it tells.

    `several`: the request asked for more than one choice. `arrivals` counts the chunks with output. `together`: the
    times of arrivals wait for `flush`, since one call of the trail for all of them costs a third. Those of several
    choices never wait.
    """

    def __init__(self, request: RequestTrail, *, several: bool = False, together: bool = False) -> None:
        self.request = request
        self.answer = Answer()
        self.arrivals = 0
        self._several = several
        self._together = together and not several
        self._stamps: list[int] = []

    def event(self, event: Any, at_ns: int | None = None) -> None:
        """An event arrived at `at_ns` (unix ns; by default now)."""
        for index in self.answer.read(event):
            self.arrived(index, at_ns)

    def arrived(self, choice: int, at_ns: int | None) -> None:
        """An event with output of a choice arrived."""
        self.arrivals += 1
        if self._together and at_ns is not None:
            self._stamps.append(at_ns)
            return
        recipient: Recipient = self.request.choice(choice) if self._several else self.request
        recipient.token(1, at_ns)

    def flush(self) -> None:
        """The arrivals that wait go to the trail."""
        if self._stamps:
            stamps, self._stamps = self._stamps, []
            self.request.tokens(stamps)

    def end(self, at_ns: int | None = None, *, status: Status = Status.OK, error_type: str = "") -> None:
        """Ends the request; only the first call counts. An error that the answer told goes before a success."""
        self.flush()
        answer = self.answer
        if status is Status.OK:
            error_type = error_type or answer.error_type
        self.request.end(
            at_ns,
            status=status,
            error_type=error_type,
            finish_reasons=[answer.reasons[index] for index in sorted(answer.reasons)],
            response_model=answer.model,
            response_id=answer.response_id,
            attributes={ARRIVALS: self.arrivals, **self._arrived_tokens()},
            **self._usage(),
        )

    def _arrived_tokens(self) -> dict[str, int]:
        """The number of tokens that the arrivals brought, when some of the output tokens never arrived. 0 is not known:
        Anthropic's usage does not tell the tokens of thinking, and a summary is no reasoning.

        1,000 reasoning tokens among 1,006 output tokens, without any reasoning in the stream, give 6
        """
        answer = self.answer
        hidden = answer.usage.get("reasoning_tokens", 0)
        if answer.reasoned or not (answer.withheld or hidden):
            return {}
        return {ARRIVED_TOKENS: 0 if answer.withheld else max(answer.usage.get("output_tokens", 0) - hidden, 0)}

    def _usage(self) -> dict[str, Any]:
        """The counts that can be true. A prompt of 0 tokens is a placeholder, as are 0 output tokens beside output.

        {"input_tokens": 0, "output_tokens": 0} of an answer with a text gives {}
        """
        usage = self.answer.usage
        if self.arrivals and usage.get("output_tokens") == 0:
            return {name: value for name, value in usage.items() if value}
        return {name: value for name, value in usage.items() if value or name != "input_tokens"}


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


def count(*values: Any) -> int | None:
    """The first value that is a number of tokens, or None."""
    return next((value for value in values if type(value) is int and 0 <= value < MAX_COUNT), None)
