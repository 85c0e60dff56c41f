"""One request: its parameters, its trail, and the sequences that answer it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from instrumented_engine.core.beams import Beams
from instrumented_engine.core.handover import Prefilled
from instrumented_engine.core.reasoning import Reasoning
from instrumented_engine.core.sequence import Sequence
from instrumented_engine.core.text import TextStream
from tokentrail import RequestTrail

if TYPE_CHECKING:
    from instrumented_engine.core.sequence import Output


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the tokens of a request are chosen, and when they stop. Each prompt gets `n` answers.

    `temperature` 0 is greedy; `top_k` 0, `top_p` 1 and `min_p` 0 are off. The text ends before the first `stop` string
    or token of `stop_token_ids`. They and end-of-sequence tokens count only from `min_tokens` on.

    `presence_penalty` and `frequency_penalty` are taken from the logits of tokens of the output, the second once for
    each time. `repetition_penalty` divides the logits of tokens of prompt and output. `logit_bias` is added to the
    logits of its tokens. `logprobs` is the number of likely tokens that are told with each output token, None for no
    log-probabilities; `prompt_logprobs` is the same for the tokens of the prompt.

    With a `beam_width`, which `n` equals, the answers are the best of beam search. `length_penalty` is the power of an
    answer's length by which its log-probability is divided before answers are compared.

    Of the requests that wait, those with the lowest `priority` go first.
    """

    max_tokens: int
    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    min_tokens: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    priority: int = 0
    beam_width: int = 0
    length_penalty: float = 1.0


@dataclass(eq=False, slots=True)
class Request:
    """The sequences of one request: `params.n` for each prompt, those of the first prompt first.

    Each output of a sequence goes to `sink`. The request arrived at `arrival_ns`, was first scheduled at `scheduled_ns`
    and got its first token at `first_token_ns`, and the first that is no reasoning at `first_visible_ns` (unix ns; 0
    before).

    `prefilled` has the keys and values of the prompt if another engine computed them, until the engine has taken them
    in. A request that `hands_over` is
    one of another engine: when it ends, `prefilled` has those of its prompt.
    """

    params: SamplingParams
    trail: RequestTrail
    sink: Callable[[Output], None]
    arrival_ns: int = 0
    sequences: list[Sequence] = field(default_factory=list)
    scheduled_ns: int = 0
    first_token_ns: int = 0
    first_visible_ns: int = 0
    prefilled: Prefilled | None = None
    hands_over: bool = False

    @classmethod
    def of(
        cls,
        prompts: Seq[Seq[int]],
        params: SamplingParams,
        *,
        trail: RequestTrail,
        sink: Callable[[Output], None],
        text: Callable[[Seq[int]], TextStream],
        reasoning: Callable[[Seq[int]], Reasoning | None] = lambda _: None,
        arrival_ns: int = 0,
    ) -> Request:
        """Build a request for prompts of token ids. `text` makes the text stream of an answer to a prompt.

        `reasoning` makes the object that divides its text, None if nothing is hidden.
        """
        request = cls(params, trail, sink, arrival_ns)
        several = len(prompts) * params.n > 1
        for prompt in prompts:
            leader = None
            for _ in range(params.n):
                index = len(request.sequences)
                # Python drops the sign of a seed, and then -1 and 1 would be one.
                seed = None if params.seed is None else (params.seed + index) % 2**64
                sequence = Sequence(
                    request=request,
                    index=index,
                    recipient=trail.choice(index) if several else trail,
                    leader=leader,
                    num_prompt_tokens=len(prompt),
                    token_ids=list(prompt),
                    text=text(prompt),
                    reasoning=reasoning(prompt),
                    rng=random.Random(seed),  # noqa: S311  # sampling, not secrets
                )
                leader = leader or sequence
                request.sequences.append(sequence)
            if params.beam_width:
                beams = Beams(request.sequences[-params.n :], params.length_penalty)
                for sequence in request.sequences[-params.n :]:
                    sequence.beams = beams
        return request

    @property
    def leaders(self) -> list[Sequence]:
        """The first sequence of each prompt. It computes the prompt, and its followers share the result."""
        return [sequence for sequence in self.sequences if sequence.leader is None]

    def followers(self, leader: Sequence) -> Iterator[Sequence]:
        """The other sequences with the same prompt."""
        return (sequence for sequence in self.sequences if sequence.leader is leader)

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of all prompts; each counts once."""
        return sum(sequence.num_prompt_tokens for sequence in self.leaders)

    @property
    def num_cached_tokens(self) -> int | None:
        """Prompt tokens that the prefix cache had; None without a cache, or before all prompts were admitted."""
        counts = [sequence.num_cached_tokens for sequence in self.leaders]
        return sum(counts) if None not in counts else None  # type: ignore[arg-type]  # none of them is None

    @property
    def num_output_tokens(self) -> int:
        """Output tokens of all sequences so far."""
        return sum(sequence.num_output_tokens for sequence in self.sequences)

    @property
    def num_reasoning_tokens(self) -> int | None:
        """Output tokens of hidden reasoning and its markers; None if reasoning is not looked for."""
        counts = [sequence.reasoning.num_tokens for sequence in self.sequences if sequence.reasoning is not None]
        return sum(counts) if counts else None

    @property
    def num_drafted_tokens(self) -> int:
        """Tokens that speculative decoding proposed."""
        return sum(sequence.num_drafted_tokens for sequence in self.sequences)

    @property
    def num_accepted_tokens(self) -> int:
        """Drafted tokens that the model sampled too."""
        return sum(sequence.num_accepted_tokens for sequence in self.sequences)

    @property
    def ended(self) -> bool:
        """Whether all sequences have met a stop condition, or the request was aborted."""
        return all(sequence.finish_reason for sequence in self.sequences)
