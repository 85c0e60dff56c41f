"""Turns a scheduled batch into tensors, runs the model and samples."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from time import perf_counter_ns

import torch

from instrumented_engine.core.plan import Plan, Scheduled, StepResult
from instrumented_engine.core.sequence import Sequence, TokenLogprobs
from instrumented_engine.model.attention import Batch, Prefill
from instrumented_engine.model.llama import Llama
from instrumented_engine.model.sampler import Row, logprobs, sample

LOGPROB_ROWS = 64
"""Rows of a prompt whose logits are in memory at a time."""


class ModelRunner:
    """A model and its KV cache: `kv_blocks` blocks of `block_size` tokens, in the weights' dtype, on their device."""

    def __init__(self, model: Llama, *, kv_blocks: int, block_size: int, eos_ids: Seq[int]) -> None:
        config = model.config
        self._model = model
        self._block_size = block_size
        self._eos_ids = list(eos_ids)
        self._device = model.weights.embedding.device
        # Zeros, not empty: padding is gathered too, and a masked NaN is still a NaN.
        self._cache = torch.zeros(
            (config.layers, kv_blocks, block_size, 2 * config.kv_heads, config.head_dim),
            dtype=model.weights.embedding.dtype,
            device=self._device,
        )

    @torch.inference_mode()
    def run(self, plan: Plan) -> StepResult:
        """Compute the batch and sample one token for each sequence whose last token was computed."""
        start = perf_counter_ns()
        for source, target in plan.copies:
            self._cache[:, target] = self._cache[:, source]
        batch = sorted(plan.batch, key=lambda item: item.num_scheduled_tokens > 1)
        states = self._model.forward(self._tensors(batch), self._cache)
        sampling = [item.sequence for item in batch if item.samples]
        sampled, found = self._sample(states[: len(sampling)], sampling)
        prompts = self._prompt_logprobs(states[len(sampling) :], batch)
        token_ids = [[sampled[item.sequence]] if item.samples else [] for item in plan.batch]
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)  # a step that samples nothing has not waited for the device yet
        return StepResult(token_ids, found, prompts, device_ns=perf_counter_ns() - start)

    def _sample(
        self, states: torch.Tensor, sequences: Seq[Sequence]
    ) -> tuple[dict[Sequence, int], dict[Sequence, list[TokenLogprobs]]]:
        """The token of each sequence, and its log-probabilities where they are wanted."""
        logits = self._model.logits(states)
        wanted = [row for row, sequence in enumerate(sequences) if sequence.params.logprobs is not None]
        unchanged = logits[wanted] if wanted else logits
        tokens = sample(logits, [Row.after(sequence) for sequence in sequences], self._eos_ids)
        found: dict[Sequence, list[TokenLogprobs]] = {}
        if wanted:
            tops = [sequences[row].params.logprobs or 0 for row in wanted]
            told = logprobs(unchanged, [tokens[row] for row in wanted], tops)
            found = {sequences[row]: [item] for row, item in zip(wanted, told, strict=True)}
        return dict(zip(sequences, tokens, strict=True)), found

    def _prompt_logprobs(self, states: torch.Tensor, batch: Seq[Scheduled]) -> dict[Sequence, list[TokenLogprobs]]:
        """The log-probabilities of prompts. `states` has the rows of `_prompt_positions`, item by item."""
        found: dict[Sequence, list[TokenLogprobs]] = {}
        first = 0
        for item in batch:
            sequence, positions = item.sequence, _prompt_positions(item)
            for start in range(0, len(positions), LOGPROB_ROWS):
                part = positions[start : start + LOGPROB_ROWS]
                logits = self._model.logits(states[first : first + len(part)])
                targets = [sequence.token_ids[position + 1] for position in part]
                tops = [sequence.params.prompt_logprobs or 0] * len(part)
                found.setdefault(sequence, []).extend(logprobs(logits, targets, tops))
                first += len(part)
        return found

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Run one prefill and one decode in block 0, so that torch's lazy initialisation does not delay a request."""
        row, rows = self._tensor([0]), self._tensor(list(range(min(8, self._block_size))))
        table = self._tensor([[0]])
        mask = torch.ones((1, 1, 1, self._block_size), dtype=torch.bool, device=self._device)
        prefill = Batch(rows, rows, rows, row, 0, table, mask, (Prefill(0, len(rows)),))
        decode = Batch(row, row, row, row, 1, table, mask, ())
        for batch in (prefill, decode):
            self._model.logits(self._model.forward(batch, self._cache)).argmax(dim=-1).tolist()

    def _tensors(self, batch: Seq[Scheduled]) -> Batch:
        size = self._block_size
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        sampled: list[int] = []
        prompt_rows: list[int] = []
        parts: list[Prefill] = []
        for item in batch:
            sequence, new = item.sequence, _new_positions(item)
            if len(new) > 1:
                parts.append(self._prefill(item, row=len(tokens)))
            prompt_rows += [len(tokens) + position - new.start for position in _prompt_positions(item)]
            tokens += sequence.token_ids[new.start : new.stop]
            positions += new
            slots += [sequence.block_table[p // size] * size + p % size for p in new]
            if item.samples:
                sampled.append(len(tokens) - 1)
        decodes = [item for item in batch if item.num_scheduled_tokens == 1]
        tables = [item.sequence.block_table for item in decodes]
        widest = max(map(len, tables), default=0)
        lengths = self._tensor([item.sequence.num_computed_tokens + 1 for item in decodes])
        offsets = torch.arange(widest * size, device=self._device)
        return Batch(
            tokens=self._tensor(tokens),
            positions=self._tensor(positions),
            slots=self._tensor(slots),
            sampled=self._tensor(sampled + prompt_rows),
            decodes=len(decodes),
            block_table=self._tensor([table + [0] * (widest - len(table)) for table in tables]),
            mask=(offsets < lengths.unsqueeze(1))[:, None, None, :],
            prefills=tuple(parts),
        )

    def _prefill(self, item: Scheduled, *, row: int) -> Prefill:
        new = _new_positions(item)
        if not new.start:
            return Prefill(row, row + len(new))
        seen = torch.arange(new.stop, device=self._device)
        mask = seen <= torch.arange(new.start, new.stop, device=self._device).unsqueeze(1)
        return Prefill(row, row + len(new), block_table=self._tensor(item.sequence.block_table), mask=mask)

    def _tensor(self, values: Seq[int] | Seq[list[int]]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.long).to(self._device, non_blocking=True)


def _prompt_positions(item: Scheduled) -> range:
    """The computed positions of a prompt whose next token is in the prompt too, if its log-probability is wanted."""
    sequence = item.sequence
    if sequence.params.prompt_logprobs is None or sequence.leader is not None:
        return range(0)
    new = _new_positions(item)
    return range(new.start, min(new.stop, sequence.num_prompt_tokens - 1))


def _new_positions(item: Scheduled) -> range:
    first = item.sequence.num_computed_tokens
    return range(first, first + item.num_scheduled_tokens)
