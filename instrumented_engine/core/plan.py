"""A step before and after it is computed: the scheduler makes plans, the runner makes results."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from instrumented_engine.core.sequence import Sequence, TokenLogprobs
from tokentrail.semconv import Wait


@dataclass(frozen=True, slots=True)
class Scheduled:
    """One sequence's share of a step: its next `num_scheduled_tokens` tokens are computed, and behind them a draft.

    The runner keeps the tokens of the draft up to the first that it would not have sampled itself.
    """

    sequence: Sequence
    num_scheduled_tokens: int
    draft: Seq[int] = ()

    @property
    def num_rows(self) -> int:
        """Tokens that are computed, the draft's among them."""
        return self.num_scheduled_tokens + len(self.draft)

    @property
    def samples(self) -> bool:
        """Whether the step computes the sequence's last token, so that the next one can be sampled."""
        return self.num_scheduled_tokens == self.sequence.num_uncomputed_tokens


@dataclass(frozen=True, slots=True)
class Transfer:
    """Blocks of a sequence that are copied between the device and the host: to the host when it is preempted.

    It is preempted for the sake of `beneficiary`.
    """

    sequence: Sequence
    device_blocks: list[int]
    host_blocks: list[int]
    beneficiary: Sequence | None = None

    @property
    def to_host(self) -> bool:
        """To the host, for the sake of a beneficiary; else back to the device."""
        return self.beneficiary is not None


class Preempted(NamedTuple):
    """A preempted sequence, its blocks that became free, and the sequence that needed one."""

    victim: Sequence
    blocks: int
    beneficiary: Sequence


@dataclass(slots=True)
class Plan:
    """One step: the batch, the sequences that entered it, and the preempted ones.

    Before the batch is computed, `offloads` are copied to the host, then `restores` back, and then the contents of the
    first block of each pair in `copies` are copied to the second. `wait` is the reason why the first waiting sequence
    waits, `waiting` the number of sequences by reason. The admitted sequences found `cached_tokens` in the prefix
    cache, `cached_prompt_tokens` of them for prompts that were never admitted before. The cache gave up
    `dropped_blocks` of its blocks.
    """

    batch: list[Scheduled] = field(default_factory=list)
    admitted: list[Sequence] = field(default_factory=list)
    preempted: list[Preempted] = field(default_factory=list)
    offloads: list[Transfer] = field(default_factory=list)
    restores: list[Transfer] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    wait: Wait | None = None
    waiting: Mapping[Wait, int] = field(default_factory=dict)
    prefill_tokens: int = 0
    decode_tokens: int = 0
    drafted_tokens: int = 0
    cached_tokens: int = 0
    cached_prompt_tokens: int = 0
    dropped_blocks: int = 0

    @property
    def num_tokens(self) -> int:
        """Tokens that the step computes."""
        return self.prefill_tokens + self.decode_tokens + self.drafted_tokens

    @property
    def evicted_blocks(self) -> int:
        """Blocks that preemption freed without a copy: their contents are lost."""
        kept = {transfer.sequence for transfer in self.offloads}
        return sum(one.blocks for one in self.preempted if one.victim not in kept)

    def add(self, sequence: Sequence, num_tokens: int, draft: Seq[int] = ()) -> None:
        """Take a sequence into the batch."""
        self.batch.append(Scheduled(sequence, num_tokens, draft))
        self.drafted_tokens += len(draft)
        if sequence.decoding:
            self.decode_tokens += num_tokens
        else:
            self.prefill_tokens += num_tokens

    def part(self, batch: Seq[Scheduled]) -> Plan:
        """The plan of a part of this batch, with the copies into the blocks of that part."""
        blocks = {block for item in batch for block in item.sequence.block_table}
        part = replace(self, batch=[], prefill_tokens=0, decode_tokens=0, drafted_tokens=0)
        part.copies = [(source, target) for source, target in self.copies if target in blocks]
        for item in batch:
            part.add(item.sequence, item.num_scheduled_tokens, item.draft)
        return part


@dataclass(slots=True)
class StepResult:
    """The outcome of a computed plan.

    `token_ids` has the sampled tokens of each item of the batch, in its order: none unless `Scheduled.samples`; then
    one, or several if it had a draft. The runner has stored the keys and values of all but the last of
    them in the sequence's blocks. `logprobs` are those of the sampled tokens, `prompt_logprobs` those of the tokens
    behind the computed ones of a prompt, each for the requests that want them. The device worked for
    `device_ns` on the step; None when that is not known. `embeddings` are an encoder's vectors. At the device's peaks,
    the arithmetic of the step takes `compute_ns`, and reading its weights, keys and values `memory_ns`. A CUDA graph
    for `graph_rows` sequences computed it; None if its kernels were launched one by one.
    """

    token_ids: list[list[int]]
    logprobs: dict[Sequence, list[TokenLogprobs]] = field(default_factory=dict)
    prompt_logprobs: dict[Sequence, list[TokenLogprobs]] = field(default_factory=dict)
    device_ns: int | None = None
    embeddings: dict[Sequence, list[float]] = field(default_factory=dict)
    compute_ns: int | None = None
    memory_ns: int | None = None
    graph_rows: int | None = None

    def add(self, other: StepResult) -> None:
        """Append the result of another part of the step."""
        self.token_ids.extend(other.token_ids)
        self.logprobs.update(other.logprobs)
        self.prompt_logprobs.update(other.prompt_logprobs)
        self.embeddings.update(other.embeddings)
        for name in ("device_ns", "compute_ns", "memory_ns", "graph_rows"):
            if (more := getattr(other, name)) is not None:
                setattr(self, name, (getattr(self, name) or 0) + more)
