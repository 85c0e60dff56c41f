"""One answer inside the engine: its tokens, its blocks, and the stop conditions of its output."""

from __future__ import annotations

import random
from collections.abc import Collection
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from instrumented_engine.core.block_manager import BlockManager, hash_block
from instrumented_engine.core.drafter import NgramIndex
from instrumented_engine.core.reasoning import Reasoning
from instrumented_engine.core.text import TextStream
from tokentrail.semconv import Wait

if TYPE_CHECKING:
    from instrumented_engine.core.beams import Beams
    from instrumented_engine.core.request import Request, SamplingParams
    from tokentrail._record.recipient import Recipient


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """A token, its log-probability by the model's own logits, and the most likely tokens at its place, best first.

    `entropy` is that of all tokens at the place, in nats. The first token of a prompt has neither.
    """

    token_id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    entropy: float | None = None


class Branch(NamedTuple):
    """The tokens of a beam that another one continues, and a block table of its own for them."""

    token_ids: list[int]
    block_table: list[int]
    num_computed_tokens: int
    num_published_blocks: int
    hashes: list[bytes]


@dataclass(eq=False, slots=True)
class Sequence:
    """The tokens of one answer (prompt, then output) and how many of them the KV cache holds.

    `recipient` gets its tokens in the trace. `leader` is the first sequence with the same prompt, None in the leader
    itself. The keys and values of the first `num_computed_tokens` tokens lie in the blocks of `block_table`, or,
    while a preempted sequence waits, in `host_blocks` on the host. `decoding`
    is true from the first output token until the sequence is preempted. `num_cached_tokens` were found in the prefix
    cache when the sequence was first admitted; None before, and without a cache. `order` is its place among all
    sequences: the smallest runs first and is preempted last. It ends with the number of the request's arrival and the
    index. It waits for `wait` since `wait_since_ns`, and has `waited` so many ns for each reason before. `rng`
    belongs to this sequence alone, so its output does not depend on the other sequences of the batch. Speculative
    decoding proposed `num_drafted_tokens`, and the model sampled `num_accepted_tokens` of them.
    `logprobs` are those of the output tokens, if they are wanted, and
    `prompt_logprobs` those of the prompt's second and later tokens. `beams` is the search to which the
    sequence belongs.
    """

    request: Request
    index: int
    recipient: Recipient
    leader: Sequence | None
    num_prompt_tokens: int
    token_ids: list[int]
    text: TextStream
    reasoning: Reasoning | None
    rng: random.Random
    order: tuple[int, ...] = ()
    wait: Wait | None = None
    wait_since_ns: int = 0
    waited: dict[Wait, int] = field(default_factory=dict)
    block_table: list[int] = field(default_factory=list)
    host_blocks: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    num_published_blocks: int = 0
    num_drafted_tokens: int = 0
    num_accepted_tokens: int = 0
    ngrams: NgramIndex | None = None
    beams: Beams | None = None
    num_cached_tokens: int | None = None
    decoding: bool = False
    finish_reason: str = ""
    last_token_ns: int = 0
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    _uniforms: list[float] = field(default_factory=list)
    _hashes: list[bytes] = field(default_factory=list)

    @property
    def params(self) -> SamplingParams:
        """The sampling parameters of the request."""
        return self.request.params

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens that forward passes must still compute before the next token can be sampled."""
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def num_output_tokens(self) -> int:
        """Output tokens so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def arrival(self) -> int:
        """The number of the request's arrival."""
        return self.order[-2]

    def waits_for(self, reason: Wait | None, now_ns: int) -> None:
        """From now on the sequence waits for `reason`; None: it does not wait."""
        if self.wait is not None:
            self.waited[self.wait] = self.waited.get(self.wait, 0) + now_ns - self.wait_since_ns
        self.wait, self.wait_since_ns = reason, now_ns

    def uniform(self, ahead: int) -> float:
        """The random number, 0 to 1, of the output token that is `ahead` places behind the next one."""
        position = self.num_output_tokens + ahead
        while len(self._uniforms) <= position:
            self._uniforms.append(self.rng.random())
        return self._uniforms[position]

    def block_hashes(self, size: int) -> list[bytes]:
        """The hashes of the blocks of `size` tokens that the tokens fill; those of a prefix never change."""
        for start in range(len(self._hashes) * size, len(self.token_ids) - size + 1, size):
            previous = self._hashes[-1] if self._hashes else b""
            self._hashes.append(hash_block(previous, self.token_ids[start : start + size]))
        return self._hashes

    def branch(self, block_manager: BlockManager) -> Branch:
        """A copy of the tokens, which shares the blocks."""
        block_table: list[int] = []
        block_manager.share(block_table, self.block_table)
        return Branch(
            list(self.token_ids), block_table, self.num_computed_tokens, self.num_published_blocks, list(self._hashes)
        )

    def follow(self, branch: Branch, token_id: int) -> None:
        """Continue a branch with a token. The blocks that the sequence had are free already."""
        self.token_ids = [*branch.token_ids, token_id]
        self.block_table = branch.block_table
        self.num_computed_tokens = branch.num_computed_tokens
        self.num_published_blocks = branch.num_published_blocks
        self._hashes = branch.hashes
        self.decoding = True

    def extend(self, token_ids: Seq[int], eos_ids: Collection[int], logprobs: Seq[TokenLogprobs] = ()) -> Output:
        """Append the tokens that one step sampled, up to the first that ends the output; drop those behind it.

        The runner has computed every appended token but the last.
        """
        text = hidden = ""
        before = self.num_output_tokens
        for token_id in token_ids:
            piece, self.finish_reason = self._append(token_id, eos_ids)
            if self.reasoning is not None:
                thought, piece = self.reasoning.push(piece, final=bool(self.finish_reason))
                hidden += thought
            text += piece
            if self.finish_reason:
                break
        num_tokens = self.num_output_tokens - before
        self.num_computed_tokens += num_tokens - 1
        told = tuple(logprobs[:num_tokens])
        self.logprobs += told
        return Output(self, text, self.finish_reason, reasoning=hidden, num_tokens=num_tokens, logprobs=told)

    def encoded(self, embedding: list[float]) -> Output:
        """An encoder has computed the vector of the tokens: nothing else follows."""
        self.finish_reason = "stop"
        return Output(self, finish_reason="stop", embedding=embedding)

    def _append(self, token_id: int, eos_ids: Collection[int]) -> tuple[str, str]:
        """Append one token; return the text that it releases and the finish reason, empty while the output goes on."""
        self.token_ids.append(token_id)
        may_stop = self.num_output_tokens >= self.params.min_tokens
        if may_stop and token_id in self.params.stop_token_ids:
            return self.text.flush(), "stop"
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
    """The part of an answer that one step added. `finish_reason` or `error` is set on the last one.

    `text` and `reasoning` may be sent to the client; `num_tokens` is the number of tokens that the step
    appended. `logprobs` has one item for each of them if the request wants log-probabilities.
    `embedding` is the vector of an encoder, which makes no tokens.
    """

    sequence: Sequence
    text: str = ""
    finish_reason: str = ""
    error: Exception | None = None
    reasoning: str = ""
    num_tokens: int = 0
    logprobs: tuple[TokenLogprobs, ...] = ()
    embedding: list[float] | None = None

    @property
    def final(self) -> bool:
        """No more output of the sequence follows."""
        return bool(self.finish_reason) or self.error is not None
