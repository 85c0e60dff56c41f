"""Beam search: the likeliest continuations of a prompt are followed together; the best complete ones are answers."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from instrumented_engine.core.block_manager import BlockManager

if TYPE_CHECKING:
    from instrumented_engine.core.sequence import Output, Sequence


class Candidate(NamedTuple):
    """A beam with one more token, and the sum of the log-probabilities of all its output tokens."""

    score: float
    beam: Sequence
    token_id: int


class Answer(NamedTuple):
    """Output tokens that are complete. The score is divided by their number to the power of the length penalty."""

    score: float
    token_ids: list[int]


class Beams:
    """The beams of one prompt. `live` are followed: the first sequence alone until the prompt is computed, then all.

    All live beams compute one token each, and then are replaced together. The rules are those of transformers' beam
    search with `early_stopping=False`.
    """

    def __init__(self, sequences: list[Sequence], length_penalty: float) -> None:
        self.width = len(sequences)
        self.live = sequences[:1]
        self._sequences = sequences
        self._length_penalty = length_penalty
        self._scores = [0.0] * self.width
        self._candidates: dict[Sequence, tuple[tuple[int, float], ...]] = {}
        self._answers: list[Answer] = []

    @property
    def ready(self) -> bool:
        """Whether each live beam has computed all its tokens."""
        return all(beam.num_uncomputed_tokens == 0 for beam in self.live)

    def found(self, beam: Sequence, candidates: tuple[tuple[int, float], ...]) -> None:
        """The likeliest next tokens of a beam with their log-probabilities: `width` besides ends of sequence."""
        self._candidates[beam] = candidates

    # Two beams "a" (-1.0) and "b" (-1.2). The sums with the next token are: a x -1.1, b <end> -1.3, a y -1.5, b z -1.9.
    # "a x" and "a y" are the next beams. "b <end>" is among the best two, so it is an answer with -1.3 / 2.
    def advance(self, block_manager: BlockManager, eos_ids: Collection[int]) -> list[Output]:
        """Replace the beams by the likeliest continuations: one output for each sequence, the last ones if all end."""
        from instrumented_engine.core.sequence import Output

        length = self.live[0].num_output_tokens + 1
        last = length >= self.live[0].params.max_tokens
        chosen: list[Candidate] = []
        for rank, candidate in enumerate(self._ranked()):
            if last or candidate.token_id in eos_ids:
                if rank < self.width:
                    self._complete(candidate, length)
            elif len(chosen) < self.width:
                chosen.append(candidate)
        if last or self._cannot_improve(chosen[0].score / length**self._length_penalty):
            return [self._final(*pair, eos_ids) for pair in zip(self._sequences, self._answers, strict=True)]
        self._follow(chosen, block_manager)
        return [Output(sequence, num_tokens=1) for sequence in self._sequences]

    def _ranked(self) -> list[Candidate]:
        ranked = [
            Candidate(score + logprob, beam, token)
            for beam, score in zip(self.live, self._scores, strict=False)
            for token, logprob in self._candidates[beam]
        ]
        return sorted(ranked, key=lambda candidate: -candidate.score)

    def _complete(self, candidate: Candidate, length: int) -> None:
        output = candidate.beam.token_ids[candidate.beam.num_prompt_tokens :]
        self._answers.append(Answer(candidate.score / length**self._length_penalty, [*output, candidate.token_id]))
        self._answers.sort(key=lambda answer: -answer.score)
        del self._answers[self.width :]

    def _cannot_improve(self, best: float) -> bool:
        return len(self._answers) == self.width and best <= self._answers[-1].score

    def _follow(self, chosen: list[Candidate], block_manager: BlockManager) -> None:
        """Each sequence becomes one of the chosen beams. Beams with the same beginning share its blocks."""
        branches = [candidate.beam.branch(block_manager) for candidate in chosen]
        for beam in self.live:
            block_manager.free(beam.block_table)
        self.live = self._sequences
        self._scores = [candidate.score for candidate in chosen]
        for sequence, branch, candidate in zip(self.live, branches, chosen, strict=True):
            sequence.follow(branch, candidate.token_id)

    def _final(self, sequence: Sequence, answer: Answer, eos_ids: Collection[int]) -> Output:
        del sequence.token_ids[sequence.num_prompt_tokens :]
        return replace(sequence.extend(answer.token_ids, eos_ids), num_tokens=1)


def with_beams(sequence: Sequence) -> list[Sequence]:
    """The sequences that are admitted, computed and preempted with a sequence: itself, or all beams of its prompt."""
    return [sequence] if sequence.beams is None else sequence.beams.live
