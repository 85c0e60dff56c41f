"""Request models. A parameter that is unknown or not implemented is an error and never ignored."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from instrumented_engine.core.request import SamplingParams

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "echo": (False,),
    "suffix": ("",),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "response_format": ({"type": "text"},),
    "use_beam_search": (False,),
}
"""Parameters that are not implemented, with the values (besides null) that have no effect and are accepted."""

IGNORED = {
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "parallel_tool_calls",
    "request_id",
}
"""Parameters that do not change the output and are accepted with any value."""


def _no_lone_surrogates(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise PydanticCustomError("surrogates", "half a surrogate pair is not a character") from error
    return text


Text = Annotated[str, AfterValidator(_no_lone_surrogates)]
"""A string that can be tokenised. JSON can escape half a surrogate pair, which has no encoding."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class StreamOptions(_Strict):
    """Options of a streamed response."""

    include_usage: bool = False
    continuous_usage_stats: Literal[False] = False


class GenerationRequest(_Strict):
    """Parameters that chat and plain completions share."""

    default_max_tokens: ClassVar[int | None] = None

    model: str = Field(min_length=1, max_length=1024)
    max_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1)
    min_p: float | None = Field(None, ge=0, le=1)
    seed: int | None = Field(None, ge=-(2**63), lt=2**64)
    stop: Text | list[Text] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    ignore_eos: bool = False
    min_tokens: int = Field(0, ge=0)

    @model_validator(mode="before")
    @classmethod
    def _drop_parameters_without_effect(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        for name, neutral in NEUTRAL.items():
            if (value := data.get(name)) is not None and not any(_same(value, accepted) for accepted in neutral):
                raise _refused(name, f"{name}={_short(value)} is not supported by this server")
        return {key: value for key, value in data.items() if key not in NEUTRAL and key not in IGNORED}

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(self.stops) > 16 or any(not 0 < len(stop) <= 1024 for stop in self.stops):
            raise _refused("stop", "stop: at most 16 strings of 1 to 1024 characters")
        if self.stream_options and not self.stream:
            raise _refused("stream_options", "stream_options is only allowed with stream=true")
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        """Stop strings."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def wanted_tokens(self) -> int | None:
        """The limit of output tokens, None if the context is the only one."""
        return self.max_tokens or self.default_max_tokens

    def sampling(self, max_tokens: int) -> SamplingParams:
        """Sampling parameters, with OpenAI's defaults, for at most `max_tokens`."""
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=1.0 if self.temperature is None else self.temperature,
            top_p=1.0 if self.top_p is None else self.top_p,
            top_k=max(self.top_k or 0, 0),
            min_p=self.min_p or 0.0,
            seed=self.seed,
            stop=self.stops,
            ignore_eos=self.ignore_eos,
            min_tokens=min(self.min_tokens, max_tokens),
        )


class TextPart(_Strict):
    """One part of a message's content."""

    type: Literal["text"]
    text: Text


class Message(_Strict):
    """One turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text | list[TextPart]
    name: str | None = None
    refusal: None = None

    @property
    def text(self) -> str:
        """The content as one string."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class ChatRequest(GenerationRequest):
    """Body of `POST /v1/chat/completions`."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)

    @property
    def wanted_tokens(self) -> int | None:
        """`max_completion_tokens` replaces the older `max_tokens`."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def conversation(self) -> list[dict[str, str]]:
        """The messages in the format of chat templates."""
        return [{"role": message.role, "content": message.text} for message in self.messages]


class CompletionRequest(GenerationRequest):
    """Body of `POST /v1/completions`: one prompt, as text or token ids."""

    default_max_tokens: ClassVar[int | None] = 16

    prompt: Text | list[Text] | list[int] | list[list[int]]

    @model_validator(mode="after")
    def _one_prompt(self) -> Self:
        if (
            isinstance(self.prompt, list)
            and self.prompt
            and not isinstance(self.prompt[0], int)
            and len(self.prompt) > 1
        ):
            raise _refused("prompt", "prompt: only one prompt per request is supported")
        return self

    @property
    def single_prompt(self) -> str | list[int]:
        """The prompt: text, or token ids."""
        if isinstance(self.prompt, str):
            return self.prompt
        first = self.prompt[0] if self.prompt else ""
        return first if not isinstance(first, int) else self.prompt  # type: ignore[return-value]  # a list of ints


def _refused(param: str, message: str) -> PydanticCustomError:
    return PydanticCustomError("refused", "{message}", {"message": message, "param": param})


def _same(value: Any, accepted: Any) -> bool:
    """Equality of JSON values; Python's own takes true for 1 and false for 0."""
    return isinstance(value, bool) == isinstance(accepted, bool) and bool(value == accepted)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "…"
