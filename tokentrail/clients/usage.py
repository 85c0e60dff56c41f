"""The token counts of an answer, in OpenTelemetry's words, from the usage objects of several APIs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from tokentrail.clients.fields import count, of
from tokentrail.semconv import AUDIO_INPUT_TOKENS, AUDIO_OUTPUT_TOKENS, IMAGE_INPUT_TOKENS, IMAGE_OUTPUT_TOKENS

_COUNTS: Final[dict[str, tuple[str, ...]]] = {
    "prompt": ("prompt_tokens",),
    "input": ("input_tokens",),
    "read": ("cache_read_input_tokens",),
    "made": ("cache_creation_input_tokens", "cache_write_input_tokens", "prompt_tokens_details.cache_write_tokens",
             "prompt_tokens_details.cache_creation_tokens", "input_tokens_details.cache_write_tokens"),
    "cached": ("prompt_tokens_details.cached_tokens", "input_tokens_details.cached_tokens", "cached_tokens",
               "prompt_cache_hit_tokens"),
    "output": ("completion_tokens", "output_tokens"),
    "reasoning": ("completion_tokens_details.reasoning_tokens", "output_tokens_details.reasoning_tokens",
                  "output_tokens_details.thinking_tokens", "reasoning_tokens"),
    "rejected": ("completion_tokens_details.rejected_prediction_tokens",),
    "tools": ("tool_use_prompt_tokens", "tool_use_prompt_token_count", "prompt_tokens_details.tool_use_tokens"),
    "total": ("total_tokens",),
    AUDIO_INPUT_TOKENS: ("prompt_tokens_details.audio_tokens", "input_tokens_details.audio_tokens"),
    IMAGE_INPUT_TOKENS: ("prompt_tokens_details.image_tokens", "input_tokens_details.image_tokens"),
    AUDIO_OUTPUT_TOKENS: ("completion_tokens_details.audio_tokens", "output_tokens_details.audio_tokens"),
    IMAGE_OUTPUT_TOKENS: ("completion_tokens_details.image_tokens", "output_tokens_details.image_tokens"),
}  # fmt: skip
"""The names of each count in the usage objects of OpenAI's, Anthropic's and alike APIs. The first name goes first."""

_HIDES_THOUGHTS: Final = re.compile(r"(?:^|[/.:])gemini|^gcp[.]|(?:^|[.])googleapis[.]com$", re.IGNORECASE)
"""Google's models, providers and servers: thoughts are in the total alone."""
_PATHS: Final = {name: [path.split(".") for path in paths] for name, paths in _COUNTS.items()}


class Usage:
    """The counts that the events of one answer have told. A later one replaces an earlier one, unless it is 0.

    {"input_tokens": 15, "cache_read_input_tokens": 1000}, and later {"input_tokens": 0, "output_tokens": 9},
    are 1,015 input tokens, 1,000 cached and 9 output tokens
    """

    def __init__(self) -> None:
        self._told: dict[str, int] = {}
        self._hides_thoughts = False

    def made_by(self, *names: str) -> None:
        """The model, its provider or its server. Some have thoughts in the total that no other count has."""
        self._hides_thoughts = self._hides_thoughts or any(map(_HIDES_THOUGHTS.search, names))

    def add(self, usage: Any, *, is_begun: bool = False) -> None:
        """Takes a usage object, or None. One of an answer that `is_begun` has a placeholder for the output."""
        if usage is None:
            return
        for name, paths in _PATHS.items():
            told = [number for path in paths if (number := count(_at(usage, path))) is not None]
            if told and not (is_begun and name == "output"):
                self._told[name] = next(filter(None, told), 0) or self._told.get(name, 0)

    @property
    def is_told(self) -> bool:
        """Whether an event had a count."""
        return bool(self._told)

    @property
    def rejected(self) -> int:
        """Output tokens of a prediction that the model did not take. They are paid, and never sent."""
        return self._told.get("rejected", 0)

    def counts(self, *, beside_output: bool) -> dict[str, Any]:
        """The counts, by the argument of `RequestTrail.end`. A prompt of 0 tokens is a placeholder, as are 0 output
        tokens `beside_output`.
        """
        told = self._told
        inputs, cached = self._inputs()
        output, reasoning = self._outputs(inputs)
        tokens = {
            "input_tokens": inputs,
            "output_tokens": output,
            "cached_tokens": cached,
            "cache_creation_tokens": told.get("made"),
            "reasoning_tokens": reasoning,
        }
        no_zeros = ("input_tokens", *(tokens if beside_output and output == 0 else ()))
        return {name: value for name, value in tokens.items() if value or (value == 0 and name not in no_zeros)}

    def modalities(self) -> dict[str, int]:
        """The tokens of pictures and sound among the input and the output tokens, by attribute. A 0 beside no tokens is
        a placeholder.
        """
        told = self._told
        inputs, outputs = told.get("prompt") or told.get("input"), told.get("output")
        wholes = {AUDIO_INPUT_TOKENS: inputs, IMAGE_INPUT_TOKENS: inputs}
        wholes |= {AUDIO_OUTPUT_TOKENS: outputs, IMAGE_OUTPUT_TOKENS: outputs}
        return {key: told[key] for key, whole in wholes.items() if told.get(key) or (key in told and whole)}

    def _inputs(self) -> tuple[int | None, int | None]:
        """The input tokens, and those that a cache held. Anthropic's `input_tokens` are those that no cache held or
        took. A gateway's `prompt_tokens` contain them, unless they are too few for that.
        """
        told = self._told
        beside = told.get("read", 0) + told.get("made", 0)
        inputs = told.get("prompt") or told.get("input", told.get("prompt"))
        cached = told.get("read") or told.get("cached", told.get("read"))
        if inputs is not None and not (told.get("prompt") and beside <= inputs):
            inputs += beside
        return inputs, cached

    def _outputs(self, inputs: int | None) -> tuple[int | None, int | None]:
        """The output tokens, and those of reasoning among them. Where a total has more than input and output, that is
        output only if the usage names it (xAI counts reasoning beside `completion_tokens`) or the model is known for it
        (Gemini names none). Otherwise it may be a prompt: of tools, or written to a cache.
        """
        told = self._told
        output, reasoning = told.get("output"), told.get("reasoning")
        beside = told.get("total", 0) - (inputs or 0) - (output or 0) - told.get("tools", 0)
        is_unnamed = reasoning is None and self._hides_thoughts and inputs and inputs >= told.get("cached", 0)
        if output is not None and beside > 0 and (reasoning == beside or is_unnamed):
            return output + beside, beside
        if output is not None and (reasoning or 0) > output:
            return None, None  # one of the two is wrong, and nobody knows which
        return output, reasoning


def _at(usage: Any, path: Sequence[str]) -> Any:
    for name in path:
        usage = of(usage, name)
        if usage is None:
            return None
    return usage
