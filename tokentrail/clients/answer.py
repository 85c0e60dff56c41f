"""Reads the answers of four APIs: OpenAI's chat completions, completions and responses, and Anthropic's messages.

An event is one chunk of a stream, or the body of an answer that was not streamed. It is a mapping that was parsed from
JSON, or an object of one of the official clients. No event is trusted: a field of the wrong type is not known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from tokentrail.clients.delta import Pieces, divide, is_heartbeat
from tokentrail.clients.fields import count, draws, of, reason, size, text, word
from tokentrail.clients.usage import Usage
from tokentrail.semconv import OTHER_ERROR
from tokentrail.shared.finish_reasons import End, end_of

MAX_CHOICES: Final = 128
_OF_OTHERS: Final = (
    "content", "response", "generated_text", "text", "completion", "candidates", "output", "outputs", "results",
    "generations", "token", "tokens", "predictions", "data",
)  # fmt: skip
"""Fields in which answers of other APIs have their output."""
_ENDED: Final = {"completed": "completed", "done": "completed", "incomplete": "incomplete", "failed": "failed",
                 "cancelled": "cancelled", "canceled": "cancelled"}  # fmt: skip
"""What the last event of a response says of it, by the end of the event's type."""
_ACCEPTED: Final = frozenset({"queued", "in_progress"})


class Output(NamedTuple):
    """Output of one choice: its index (0 is the only one), and the bytes of its text and of its reasoning. Output that
    has neither may be no token.
    """

    choice: int = 0
    said: int = 0
    thought: int = 0


class Answer:
    """The facts that the events of one answer have told so far. None and "" mean: not told.

    `complete`: an event said how the answer ended. `known`: it is of an API that is read here, and `accepted`: its
    output is fetched later. `error_type` is that of an error inside the answer. `thinks`: the model reasons.
    `summarised`: what arrives of that is a summary. `left_out`: a choice was beyond `MAX_CHOICES`.
    `began`: output came.
    """

    def __init__(self) -> None:
        self.response_id = self.model = self.error_type = ""
        self.complete = self.known = self.accepted = False
        self.thinks = self.summarised = self.left_out = False
        self.reasons: dict[int, str] = {}
        self.usage = Usage()
        self.began = False

    def read(self, event: Any) -> Sequence[Output]:
        """Takes an event, and returns the output that it brought."""
        if isinstance(event, str | bytes):
            return (Output(said=size(event)),) if event else ()
        kind = word(of(event, "type"))
        if error := of(event, "error"):
            self.fail(event if isinstance(error, str | bool) else error)
        if code := count(of(of(event, "base_resp"), "status_code")):  # MiniMax's, of which 0 is none
            self.fail({"code": code})
        if (choices := of(event, "choices")) is not None:
            self.known = True
            self._identify(event)
            return self._chat(event, choices if isinstance(choices, list) else ())
        if error:
            return ()
        if kind.startswith("response."):
            return self._response_event(kind, event)
        if kind in _MESSAGE_EVENTS:
            return self._message_event(kind, event)
        if kind == "message":
            self.known = True
            self._identify(event)
            self.usage.add(of(event, "usage"))
            self._stop(of(event, "stop_reason"))
            return (Output(),) if of(event, "content") is None or of(event, "content") else ()
        if of(event, "object") == "response":
            status = word(of(event, "status"))
            return self._response(event, "" if status in _ACCEPTED else status)
        if kind == "error" or of(event, "object") == "error":  # the latter from vLLM before 0.10
            self.fail(event)
        if kind == "chunk":  # openai's `client.chat.completions.stream` wraps them
            return self.read(of(event, "chunk"))
        if of(of(event, "data"), "choices") is not None:  # Mistral's client wraps them
            return self.read(of(event, "data"))
        if kind or isinstance(event, Mapping):
            self.usage.add(of(event, "usage"))
            self._other(event)
            return ()
        return (Output(),)

    def _other(self, event: Any) -> None:
        """An event of another API, or an error in words of its own: {"code": 401, "msg": "…"}, {"detail": "…"}."""
        self.known = self.known or (isinstance(event, dict) and "choices" in event)  # null
        told = [name for name in ("msg", "message", "detail", "errmsg", "error_msg") if of(event, name)]
        code = of(event, "code")
        if told and not other_output(event) and code not in (0, 200, "0", "200", "ok", "OK", "success"):
            self.fail(event)

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
                if end_of(known) is End.ERROR and (error := of(choice, "error")):
                    self.error_type = self.error_type or type_of_error(error)
            delta = of(choice, "delta")
            pieces = self._divide(delta, choice) if delta else divide(of(choice, "message"), choice)
            told = of(choice, "text")
            said, thought, summarised = pieces or Pieces(0, 0)
            self.summarised = self.summarised or summarised
            if not (said or thought) and not (told and (self.began or draws(str(told)))):
                continue
            outputs.append(Output(index, said + size(told), thought))
        return self._live(event, outputs)

    def _divide(self, delta: Any, mark: Any = None) -> Pieces | None:
        """The parts of a delta. Of what comes first, something must be seen."""
        return divide(delta, mark, begins=not self.began)

    def _live(self, event: Any, outputs: Sequence[Output]) -> Sequence[Output]:
        """Output, unless the event is marked as a sign of life."""
        if not outputs or is_heartbeat(event):
            return ()
        self.began = True
        return outputs

    def _response_event(self, kind: str, event: Any) -> Sequence[Output]:
        self.known = True
        ended = _ENDED.get(kind.removeprefix("response."), "")
        if (response := of(event, "response")) is not None:
            self._response(response, ended)
        elif ended:
            self._ended(ended)
        if kind == "response.image_generation_call.partial_image":
            return self._live(event, [Output(said=size(of(event, "partial_image_b64")))])
        if not kind.endswith(".delta") or not (delta := of(event, "delta")):
            return ()
        if "summary" in kind:
            self.summarised = True
            return self._live(event, [Output()])
        thinks = "reasoning" in kind or "thinking" in kind
        pieces = self._divide({"reasoning" if thinks else "content": delta})
        return self._live(event, [Output(0, pieces.said, pieces.thought)] if pieces else ())

    def _response(self, response: Any, ended: str = "") -> Sequence[Output]:
        """A response, whole or within an event. Where its status tells no end, that of the event does: `ended`."""
        self.known = True
        self._identify(response)
        self.usage.add(of(response, "usage"))
        status = word(of(response, "status"))
        self.accepted = status in _ACCEPTED
        if end := _ENDED.get(status, ended):
            self._ended(reason(of(of(response, "incomplete_details"), "reason")) or end)
        if end == "failed":
            self.fail(of(response, "error"))
        return (Output(),) if of(response, "output") else ()  # one in the background has none yet

    def _ended(self, told: str) -> None:
        self.complete = True
        self.reasons[0] = told
        if told == "failed":
            self.error_type = self.error_type or OTHER_ERROR

    def _message_event(self, kind: str, event: Any) -> Sequence[Output]:
        self.known = True
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
            return self._live(event, [Output(said=size(of(block, "name")))] if of(block, "name") else ())  # of a tool
        elif kind == "content_block_delta" and (pieces := self._divide(of(event, "delta"))):
            return self._live(event, [Output(0, pieces.said, pieces.thought)] if pieces.said or pieces.thought else ())
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
        if not self.model and (model := text(of(source, "model"))):
            self.model = model
            self.usage.made_by(model)


def other_output(event: Any) -> bool:
    """Whether an event of another API has output, as far as its fields tell."""
    message = of(event, "message")
    return any(of(event, name) for name in _OF_OTHERS) or (bool(message) and not isinstance(message, str))


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
