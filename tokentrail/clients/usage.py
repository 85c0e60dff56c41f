"""The token counts of an answer, in OpenTelemetry's words, from the usage objects of several APIs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tokentrail.clients.fields import count, of

_COUNTS: Final[dict[str, tuple[str, ...]]] = {
    "prompt": ("prompt_tokens",),
    "input": ("input_tokens",),
    "read": ("cache_read_input_tokens",),
    "made": ("cache_creation_input_tokens",),
    "cached": ("prompt_tokens_details.cached_tokens", "input_tokens_details.cached_tokens", "cached_tokens",
               "prompt_cache_hit_tokens"),
    "output": ("completion_tokens", "output_tokens"),
    "reasoning": ("completion_tokens_details.reasoning_tokens", "output_tokens_details.reasoning_tokens",
                  "output_tokens_details.thinking_tokens", "reasoning_tokens"),
    "rejected": ("completion_tokens_details.rejected_prediction_tokens",),
    "total": ("total_tokens",),
}  # fmt: skip
"""The names of each count in the usage objects of OpenAI's, Anthropic's and alike APIs. The first name goes first."""

_PATHS: Final = {name: [path.split(".") for path in paths] for name, paths in _COUNTS.items()}


class Usage:
    """The counts that the events of one answer have told. A later one replaces an earlier one, unless it is 0.

    {"input_tokens": 15, "cache_read_input_tokens": 1000}, and later {"input_tokens": 0, "output_tokens": 9},
    are 1,015 input tokens, 1,000 cached and 9 output tokens
    """

    def __init__(self) -> None:
        self._told: dict[str, int] = {}

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
        """The output tokens, and those of reasoning among them. xAI counts reasoning beside `completion_tokens`, and
        Gemini does not even name it: the total shows both.
        """
        told = self._told
        output, reasoning = told.get("output"), told.get("reasoning")
        beside = told.get("total", 0) - (inputs or 0) - (output or 0)
        is_unnamed = reasoning is None and inputs and inputs >= told.get("cached", 0)
        if output and beside > 0 and (reasoning == beside or is_unnamed):
            return output + beside, beside
        return output, reasoning


def _at(usage: Any, path: Sequence[str]) -> Any:
    for name in path:
        usage = of(usage, name)
        if usage is None:
            return None
    return usage
