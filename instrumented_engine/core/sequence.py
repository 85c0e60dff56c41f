"""One request inside the engine."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from instrumented_engine.core.text import TextStream
from tokentrail import RequestTrail


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the tokens of one request are chosen, and when they stop.

    `temperature` 0 is greedy; `top_k` 0, `top_p` 1 and `min_p` 0 are off. `stop` strings end the text before
    themselves; neither they nor the end-of-sequence token end it within the first `min_tokens`.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0


@dataclass(eq=False, slots=True)
class Sequence:
    """The tokens of one request (prompt, then output) and how far the KV cache holds them.

    `computed` tokens have their keys and values in `blocks`. `decoding` is true from the first output token until
    the sequence is preempted. `rng` is this request's own, so its output does not depend on who else is in the batch.
    """

    prompt_tokens: int
    tokens: list[int]
    params: SamplingParams
    trail: RequestTrail
    text: TextStream
    sink: Callable[[Output], None]
    rng: random.Random
    blocks: list[int] = field(default_factory=list)
    computed: int = 0
    decoding: bool = False

    @property
    def remaining(self) -> int:
        """Tokens that the next forward passes still have to compute."""
        return len(self.tokens) - self.computed

    @property
    def generated(self) -> int:
        """Output tokens so far."""
        return len(self.tokens) - self.prompt_tokens


@dataclass(frozen=True, slots=True)
class Output:
    """What one step gave one request: text that may be sent, and with `finish_reason` or `error` the end of it."""

    sequence: Sequence
    text: str = ""
    finish_reason: str = ""
    error: Exception | None = None

    @property
    def final(self) -> bool:
        """No more output follows."""
        return bool(self.finish_reason) or self.error is not None
