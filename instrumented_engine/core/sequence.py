"""One request inside the engine: its tokens, its blocks, and the stop conditions of its output."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from instrumented_engine.core.text import TextStream
from tokentrail import RequestTrail


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the tokens of one request are chosen, and when they stop.

    `temperature` 0 is greedy; `top_k` 0, `top_p` 1 and `min_p` 0 are off. The text ends before the first `stop` string.
    Stop strings and end-of-sequence tokens count only from `min_tokens` on.
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
    """The tokens of one request (prompt, then output) and how many of them the KV cache holds.

    The keys and values of the first `num_computed_tokens` tokens lie in the blocks of `block_table`. `decoding` is true
    from the first output token until the sequence is preempted. `rng` belongs to this request alone, so its output does
    not depend on the other requests of the batch.
    """

    num_prompt_tokens: int
    token_ids: list[int]
    params: SamplingParams
    trail: RequestTrail
    text: TextStream
    sink: Callable[[Output], None]
    rng: random.Random
    block_table: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    decoding: bool = False

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens that forward passes must still compute before the next token can be sampled."""
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def num_output_tokens(self) -> int:
        """Output tokens so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    def extend(self, token_ids: Seq[int], eos_ids: Collection[int]) -> Output:
        """Append the tokens that one step sampled, up to the first that ends the output; drop those behind it.

        The runner has computed every appended token but the last.
        """
        text = finish_reason = ""
        before = self.num_output_tokens
        for token_id in token_ids:
            piece, finish_reason = self._append(token_id, eos_ids)
            text += piece
            if finish_reason:
                break
        num_tokens = self.num_output_tokens - before
        self.num_computed_tokens += num_tokens - 1
        return Output(self, text, finish_reason, num_tokens=num_tokens)

    def _append(self, token_id: int, eos_ids: Collection[int]) -> tuple[str, str]:
        """Append one token; return the text that it releases and the finish reason, empty while the output goes on."""
        self.token_ids.append(token_id)
        may_stop = self.num_output_tokens >= self.params.min_tokens
        text, stopped = self.text.push(token_id, may_stop=may_stop)
        if stopped:
            return text, "stop"
        if may_stop and token_id in eos_ids and not self.params.ignore_eos:
            return text + self.text.flush(), "stop"
        if self.num_output_tokens >= self.params.max_tokens:
            return text + self.text.flush(), "length"
        return text, ""


@dataclass(frozen=True, slots=True)
class Output:
    """The part of a request's output that one step added. `finish_reason` or `error` is set on the last one.

    `text` may be sent to the client; `num_tokens` is the number of tokens that the step appended.
    """

    sequence: Sequence
    text: str = ""
    finish_reason: str = ""
    error: Exception | None = None
    num_tokens: int = 0

    @property
    def final(self) -> bool:
        """No more output follows."""
        return bool(self.finish_reason) or self.error is not None
