"""Turns a scheduled batch into tensors, runs the model and samples."""

from __future__ import annotations

import logging
from collections.abc import Sequence as Seq
from time import perf_counter_ns

import torch

from instrumented_engine.core.plan import Plan, Scheduled, StepResult
from instrumented_engine.core.request import SamplingParams
from instrumented_engine.core.sequence import Sequence, TokenLogprobs
from instrumented_engine.model.batch import Rows
from instrumented_engine.model.draft import matching
from instrumented_engine.model.graphs import DecodeGraphs, sizes
from instrumented_engine.model.llama import Llama
from instrumented_engine.model.operations import agree
from instrumented_engine.model.sampler import Row, logprobs, sample
from instrumented_engine.model.work import Peaks, work_of

logger = logging.getLogger(__name__)

LOGPROB_ROWS = 64
"""The logits of so many rows of a prompt are in memory at a time."""


class ModelRunner:
    """A model and its KV cache: `kv_blocks` blocks of `block_size` tokens, in the model's format, on its device.

    `host_blocks` more lie on the host, for sequences that are preempted. Once the `peaks` of the device are known, each
    step says how long its work would take there.
    """

    def __init__(
        self, model: Llama, *, kv_blocks: int, block_size: int, eos_ids: Seq[int], host_blocks: int = 0
    ) -> None:
        self._model = model
        self._block_size = block_size
        self._eos_ids = list(eos_ids)
        self._device = model.weights.embedding.device
        self.peaks: Peaks | None = None
        self._packer = model.packer(block_size)
        self._padding = kv_blocks  # a block that no sequence has: what is computed for nobody is stored there
        self._cache = model.new_cache(kv_blocks + 1, block_size)
        self._graphs: DecodeGraphs | None = None
        self._host = torch.empty(
            (len(self._cache), host_blocks, *self._cache.shape[2:]),
            dtype=self._cache.dtype,
            pin_memory=bool(host_blocks) and self._device.type == "cuda",
        )

    def transfer(self, sources: Seq[int], targets: Seq[int], *, to_host: bool) -> int:
        """Copy blocks from the device to the host, or back, and wait until it is done; return the bytes."""
        origin, goal = (self._cache, self._host) if to_host else (self._host, self._cache)
        for source, target in zip(sources, targets, strict=True):
            goal[:, target].copy_(origin[:, source], non_blocking=True)
        self._synchronize()
        return len(sources) * self.block_bytes

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        return self._cache[:, 0].nbytes

    def read(self, blocks: Seq[int]) -> bytes:
        """The contents of blocks of the device, one behind the other."""
        contents = torch.empty((len(blocks), *self._cache[:, 0].shape), dtype=self._cache.dtype)
        for position, block in enumerate(blocks):
            contents[position].copy_(self._cache[:, block])
        return contents.view(torch.uint8).numpy().tobytes()

    def write(self, host_blocks: Seq[int], contents: bytes) -> None:
        """Fill blocks of the host with the contents that `read` of another engine returned."""
        blocks = torch.frombuffer(bytearray(contents), dtype=self._cache.dtype)
        for block, content in zip(host_blocks, blocks.view(len(host_blocks), *self._host[:, 0].shape), strict=True):
            self._host[:, block].copy_(content)

    def run(self, plan: Plan) -> StepResult:
        """Compute the batch, and sample behind the last token of each sequence and behind those of its draft.

        Raises MemoryError when the device has too little memory for it.
        """
        try:
            return self._run(plan)
        except (MemoryError, RuntimeError) as error:
            if not lacks_memory(error):
                raise
            message = str(error)
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        raise MemoryError(message)  # outside of the handler: torch's error would keep the tensors of the failed pass

    @torch.inference_mode()
    def _run(self, plan: Plan) -> StepResult:
        start = perf_counter_ns()
        for source, target in plan.copies:
            self._cache[:, target] = self._cache[:, source]
        batch = sorted(plan.batch, key=lambda item: item.num_rows > 1)
        states, graph_rows = self._forward([_rows(item) for item in batch])
        sampling = [item for item in batch if item.samples]
        num_places = sum(1 + len(item.draft) for item in sampling)
        sampled, told = self._sample(states[:num_places], sampling)
        prompts = self._prompt_logprobs(states[num_places:], batch)
        token_ids = [sampled.get(item.sequence, []) for item in plan.batch]
        self._synchronize()  # a step that samples nothing has not waited for the device yet
        device_ns = perf_counter_ns() - start if self._device.type == "cuda" else None
        result = StepResult(token_ids, told, prompts, device_ns, graph_rows=graph_rows)
        if self.peaks is not None:
            work = work_of(batch, self._model.config, self._model.weights, self.block_bytes // self._block_size)
            result.compute_ns, result.memory_ns = work.compute_ns(self.peaks), work.memory_ns(self.peaks)
        return result

    def _forward(self, rows: Seq[Rows]) -> tuple[torch.Tensor, int | None]:
        """The states of some rows, and the size of the CUDA graph that computed them."""
        size = self._graphs.size(rows) if self._graphs else None
        if self._graphs and size:
            return self._graphs.run(rows, size), size
        return self._model.forward(self._packer.pack(rows), self._cache), None

    # After "a b c d a b" with the draft "c d" there are three places: behind "b", behind "c" and behind "d". The model
    # samples c, x, y there. The first two are kept: x is behind a "c" that was right, y behind a "d" that was not.
    # Each place has its own random number, so the output is the one that the model samples without a draft.
    def _sample(
        self, states: torch.Tensor, items: Seq[Scheduled]
    ) -> tuple[dict[Sequence, list[int]], dict[Sequence, list[TokenLogprobs]]]:
        """The tokens of each sequence, and their log-probabilities where they are wanted."""
        logits = self._model.logits(states)
        places = [Row.after(item.sequence, item.draft[:n]) for item in items for n in range(1 + len(item.draft))]
        tops = [self._top(place.params) for place in places]
        wanted = [index for index, top in enumerate(tops) if top is not None]
        unchanged = logits[wanted] if wanted else logits
        tokens = sample(logits, places, self._eos_ids)
        told: dict[int, TokenLogprobs] = {}
        if wanted:
            chosen, counts = [tokens[index] for index in wanted], [tops[index] or 0 for index in wanted]
            told = dict(zip(wanted, logprobs(unchanged, chosen, counts), strict=True))
        sampled: dict[Sequence, list[int]] = {}
        by_sequence: dict[Sequence, list[TokenLogprobs]] = {}
        first = 0
        for item in items:
            kept = 1 + matching(item.draft, tokens[first:])
            sampled[item.sequence] = tokens[first : first + kept]
            if first in told:
                by_sequence[item.sequence] = [told[index] for index in range(first, first + kept)]
            first += 1 + len(item.draft)
        return sampled, by_sequence

    def _top(self, params: SamplingParams) -> int | None:
        """The number of likely tokens that are told: for a beam its width, and the tokens that would end it."""
        return params.beam_width + len(self._eos_ids) if params.beam_width else params.logprobs

    def _prompt_logprobs(self, states: torch.Tensor, batch: Seq[Scheduled]) -> dict[Sequence, list[TokenLogprobs]]:
        """The log-probabilities of prompts. `states` has the rows of `_prompt_positions`, item by item."""
        by_sequence: dict[Sequence, list[TokenLogprobs]] = {}
        first = 0
        for item in batch:
            sequence, positions = item.sequence, _prompt_positions(item)
            for start in range(0, len(positions), LOGPROB_ROWS):
                part = positions[start : start + LOGPROB_ROWS]
                logits = self._model.logits(states[first : first + len(part)])
                targets = [sequence.token_ids[position + 1] for position in part]
                tops = [sequence.params.prompt_logprobs or 0] * len(part)
                by_sequence.setdefault(sequence, []).extend(logprobs(logits, targets, tops))
                first += len(part)
        return by_sequence

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Run one prefill and one decode, so that torch's lazy initialisation does not delay a request."""
        for count in (min(8, self._block_size), 1):
            batch = self._packer.pack([Rows([0] * count, 0, [self._padding], [count - 1])])
            self._model.logits(self._model.forward(batch, self._cache)).argmax(dim=-1).tolist()

    @torch.inference_mode()
    def compile_kernels(self, max_seqs: int) -> None:
        """Run a decode of each number of sequences that kernels are compiled for, so that no request waits for it."""
        for size in sizes(max_seqs):
            self._model.forward(self._packer.pack([Rows([0], 0, [self._padding], [0])] * size), self._cache)

    @torch.inference_mode()
    def capture_graphs(self, *, max_seqs: int, max_tokens: int) -> list[int]:
        """Let CUDA graphs compute decode steps of at most `max_seqs` texts of `max_tokens`.

        Returns their sizes. Graphs that cannot be captured, or compute something else than the model, are not used.
        The cache must be empty.
        """
        width = -(-max_tokens // self._block_size)
        try:
            graphs = DecodeGraphs(
                self._model, self._cache, self._packer, max_seqs=max_seqs, width=width, padding=self._padding
            )
            for size in graphs:
                rows = [Rows([i + 1], (i + 1) % self._block_size, [i], [0]) for i in range(self._trial(size))]
                states = graphs.run(rows, size)
                if not agree(states, self._model.forward(self._packer.pack(rows), self._cache)):
                    raise RuntimeError(f"the graph for {size} sequences computes other states than the model")
        except (MemoryError, RuntimeError) as error:
            logger.warning("steps are computed without CUDA graphs: %s", error)
            return []
        self._graphs = graphs
        return [*graphs]

    def _trial(self, size: int) -> int:
        """The sequences with which a graph is tried: as many as it has places for, one of them padding if it can be."""
        return min(size - (size > 1), self._padding, self._model.config.vocab_size - 1)

    @torch.inference_mode()
    def largest_step(self, rows: int, sequences: int) -> None:
        """Compute the step that needs the most memory: so many rows, in texts that fill the cache, and all samples."""
        length = self._padding * self._block_size
        blocks = range(self._padding)
        counts = [min(length, rows - first) for first in range(0, rows, length)]
        texts = [Rows([0] * count, 0, blocks, range(max(0, count - sequences), count)) for count in counts]
        texts.sort(key=lambda text: len(text.token_ids) > 1)
        states = self._model.forward(self._packer.pack(texts), self._cache)
        self._model.logits(states[:sequences]).float().softmax(dim=-1).argmax(dim=-1).tolist()

    def _synchronize(self) -> None:
        """Wait until the device is done; the CPU always is."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def lacks_memory(error: Exception) -> bool:
    """Whether an exception of torch says that memory could not be had. The CPU's allocator has no class for it."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _rows(item: Scheduled) -> Rows:
    """The rows of an item: states are returned behind its last token and behind those of its draft."""
    sequence, new = item.sequence, _new_positions(item)
    tokens = [*sequence.token_ids[new.start : new.start + item.num_scheduled_tokens], *item.draft]
    sampled = range(item.num_scheduled_tokens - 1, len(new)) if item.samples else ()
    prompt = [position - new.start for position in _prompt_positions(item)]
    return Rows(tokens, new.start, sequence.block_table, sampled, prompt)


def _prompt_positions(item: Scheduled) -> range:
    """The computed positions of a prompt that have a next token in it, if its log-probability is wanted."""
    sequence = item.sequence
    if sequence.params.prompt_logprobs is None or sequence.leader is not None:
        return range(0)
    new = _new_positions(item)
    return range(new.start, min(new.stop, sequence.num_prompt_tokens - 1))


def _new_positions(item: Scheduled) -> range:
    first = item.sequence.num_computed_tokens
    return range(first, first + item.num_rows)
