"""Request models. A parameter that is unknown or not implemented is an error and never ignored."""

from __future__ import annotations

import re
from abc import abstractmethod
from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, Field, field_validator, model_validator

from instrumented_engine.core.request import SamplingParams
from instrumented_engine.server.strict import Strict, Text, equal, refused, shown

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "suffix": ("",),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "response_format": ({"type": "text"},),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "include_stop_str_in_output": (False,),
    "add_generation_prompt": (True,),
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

MAX_ANSWERS = 256
"""Answers of one request: its prompts times `n`."""
MAX_LOGPROBS = 20
_NOT_WITH_BEAMS = (
    "stream", "stop", "stop_token_ids", "min_tokens", "presence_penalty", "frequency_penalty", "repetition_penalty",
    "logit_bias", "echo",
)  # fmt: skip


class StreamOptions(Strict):
    """Options of a streamed response."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class GenerationRequest(Strict):
    """Parameters that chat and plain completions share."""

    default_max_tokens: ClassVar[int | None] = None
    least_tokens: ClassVar[int] = 1

    model: str = Field(min_length=1, max_length=1024)
    max_tokens: int | None = Field(None, ge=1)
    n: int = Field(1, ge=1, le=MAX_ANSWERS)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1)
    min_p: float | None = Field(None, ge=0, le=1)
    seed: int | None = Field(None, ge=-(2**63), lt=2**64)
    stop: Text | list[Text] | None = None
    stop_token_ids: list[int] = Field(default=[], max_length=128)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    ignore_eos: bool = False
    min_tokens: int = Field(0, ge=0)
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    repetition_penalty: float = Field(1.0, ge=0.01, le=10)
    logit_bias: dict[str, float] = Field(default={}, max_length=1024)
    priority: int = Field(0, ge=-(2**31), lt=2**31)
    use_beam_search: bool = False
    length_penalty: float = Field(1.0, ge=-10, le=10)

    @model_validator(mode="before")
    @classmethod
    def _drop_parameters_without_effect(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        for name, neutral in NEUTRAL.items():
            if (value := data.get(name)) is not None and not any(equal(value, accepted) for accepted in neutral):
                raise refused(name, f"{name}={shown(value)} is not supported by this server")
        return {key: value for key, value in data.items() if key not in NEUTRAL and key not in IGNORED}

    @field_validator("logit_bias")
    @classmethod
    def _bias_of_token_ids(cls, bias: dict[str, float]) -> dict[str, float]:
        if not all(re.fullmatch("[0-9]{1,9}", key) and -100 <= value <= 100 for key, value in bias.items()):
            raise refused("logit_bias", "logit_bias maps token ids to numbers between -100 and 100")
        if len({int(key) for key in bias}) < len(bias):
            raise refused("logit_bias", "logit_bias names a token twice, such as 5 and 05; give each token one number")
        return bias

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(self.stops) > 16 or any(not 0 < len(stop) <= 1024 for stop in self.stops):
            raise refused("stop", "stop: at most 16 strings of 1 to 1024 characters")
        if self.stream_options and not self.stream:
            raise refused("stream_options", "stream_options is only allowed with stream=true")
        if self.length_penalty != 1 and not self.use_beam_search:
            raise refused("length_penalty", "length_penalty is only allowed with use_beam_search=true")
        if self.use_beam_search:
            self._check_beam_search()
        return self

    def _check_beam_search(self) -> None:
        set_here = {name for name in _NOT_WITH_BEAMS if (getattr(self, name) or None) != (_default(self, name) or None)}
        if self.wanted_logprobs is not None:
            set_here.add("logprobs")
        if self.temperature not in (None, 0, 1):
            set_here.add("temperature")
        if set_here:
            name = min(set_here)
            raise refused(name, f"{name}={shown(getattr(self, name))} is not supported with use_beam_search=true")

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
            n=self.n,
            stop_token_ids=frozenset(self.stop_token_ids),
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            logit_bias=tuple((int(token), bias) for token, bias in self.logit_bias.items()),
            logprobs=self.wanted_logprobs,
            prompt_logprobs=self.wanted_logprobs if self.echoes else None,
            priority=self.priority,
            beam_width=self.n if self.use_beam_search else 0,
            length_penalty=self.length_penalty,
        )

    @property
    def echoes(self) -> bool:
        """Whether each answer begins with its prompt."""
        return False

    @property
    @abstractmethod
    def wanted_logprobs(self) -> int | None:
        """The number of likely tokens that are told with each token, None for no log-probabilities."""


class TextPart(Strict):
    """One part of a message's content."""

    type: Literal["text"]
    text: Text


class Message(Strict):
    """One turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text | list[TextPart]
    name: str | None = None
    tool_calls: list[Any] = Field(default=[], max_length=0)

    @model_validator(mode="before")
    @classmethod
    def _an_assistant_may_say_nothing(cls, data: Any) -> Any:
        silent = isinstance(data, dict) and data.get("role") == "assistant" and data.get("content") is None
        return data | {"content": ""} if silent else data

    @property
    def text(self) -> str:
        """The content as one string."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


def turns(messages: list[Message]) -> list[dict[str, str]]:
    """Messages in the format of chat templates."""
    return [{"role": message.role, "content": message.text} for message in messages]


class ChatRequest(GenerationRequest):
    """Body of `POST /v1/chat/completions`."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=MAX_LOGPROBS)
    echo: Literal[False] = False

    @model_validator(mode="after")
    def _logprobs_for_top_logprobs(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise refused("top_logprobs", "top_logprobs is only allowed with logprobs=true")
        return self

    @property
    def wanted_tokens(self) -> int | None:
        """`max_completion_tokens` replaces the older `max_tokens`."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def wanted_logprobs(self) -> int | None:
        """`logprobs` asks for them, `top_logprobs` is their number."""
        return self.top_logprobs if self.logprobs else None


class CompletionRequest(GenerationRequest):
    """Body of `POST /v1/completions`: one prompt or several, as texts or token ids."""

    default_max_tokens: ClassVar[int | None] = 16

    prompt: Text | list[Text] | list[int] | list[list[int]]
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    echo: bool = False

    @model_validator(mode="after")
    def _not_too_many_answers(self) -> Self:
        if len(self.prompts) * self.n > MAX_ANSWERS:
            raise refused(
                "prompt", f"prompt: at most {MAX_ANSWERS} answers per request, and there are n for each prompt"
            )
        return self

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts: text, or token ids."""
        if isinstance(self.prompt, str) or not self.prompt or isinstance(self.prompt[0], int):
            return [self.prompt]  # type: ignore[list-item]  # a list of ints
        return list(self.prompt)

    @property
    def echoes(self) -> bool:
        """As asked for."""
        return self.echo

    @property
    def wanted_logprobs(self) -> int | None:
        """`logprobs` is a number here."""
        return self.logprobs


class TokenizeRequest(Strict):
    """Body of `POST /tokenize`: a text or a conversation, as in vLLM."""

    model: str | None = None
    prompt: Text | None = None
    messages: list[Message] = Field(default=[])
    add_special_tokens: bool = True
    add_generation_prompt: Literal[True] = True
    return_token_strs: bool = False

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.prompt is None) == (not self.messages):
            raise refused("prompt", "either prompt or messages must be given")
        return self


class DetokenizeRequest(Strict):
    """Body of `POST /detokenize`."""

    model: str | None = None
    tokens: list[int]


def _default(model: BaseModel, name: str) -> Any:
    return type(model).model_fields[name].default
