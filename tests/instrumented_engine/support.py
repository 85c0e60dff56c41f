"""Small real parts: a byte tokenizer, a runner that computes from its cache, and an engine over it."""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict

import numpy as np

from instrumented_engine.core.block_manager import BlockManager
from instrumented_engine.core.engine import Engine
from instrumented_engine.core.observer import Observer
from instrumented_engine.core.plan import StepResult
from instrumented_engine.core.request import Request, SamplingParams
from instrumented_engine.core.scheduler import Scheduler
from instrumented_engine.core.sequence import TokenLogprobs
from instrumented_engine.core.text import TextStream
from instrumented_engine.model.tokenizer import Tokenizer
from tokentrail import now_ns

EOS = 0
TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"


def request_span(trail, request_id):
    """The one request span with that id."""
    ended = [span for span in trail.spans() if "tokentrail.status" in span.attributes]
    [span] = [span for span in ended if span.attributes.get("gen_ai.response.id") == request_id]
    return span


def byte_tokenizer(*, strips_first_space=False):
    """A byte-level tokenizer: id 0 ends a text, the others are bytes."""
    import tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<eos>": EOS} | {letter: i + 1 for i, letter in enumerate(alphabet)}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    decoders = [tokenizers.decoders.ByteLevel()]
    if strips_first_space:
        decoders.append(tokenizers.decoders.Strip(" ", 1, 0))
    backend.decoder = tokenizers.decoders.Sequence(decoders)
    fast = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>", chat_template=TEMPLATE)
    return Tokenizer(fast)


class CacheRunner:
    """Continues texts by a rule that reads the whole context from a paged cache of token ids.

    A block that two sequences own, or a token that was never computed, changes the output. `script` maps a prompt
    to the exact tokens that follow it; `gate`, when given, must be set for a step to go on. A runner with a `burst`
    over 1 speculates: it returns up to that many tokens at once, as far as the sequence's blocks hold them.
    """

    def __init__(self, blocks, block_size, script=None, gate=None, burst=1):
        self.cache = np.full((blocks, block_size), -1)
        self.host = np.full((blocks, block_size), -1)
        self.script = script or {}
        self.gate = gate
        self.burst = burst
        self.failures = []
        self.plans = []

    def warm_up(self):
        if self.failures:
            raise self.failures.pop(0)

    def run(self, plan):
        self.plans.append(plan)
        if self.gate is not None:
            assert self.gate.wait(120)
        if self.failures:
            raise self.failures.pop(0)
        for source, target in plan.copies:
            self.cache[target] = self.cache[source]
        for item in plan.batch:
            sequence, first = item.sequence, item.sequence.num_computed_tokens
            for position in range(first, first + item.num_scheduled_tokens):
                self._store(sequence, position, sequence.token_ids[position])
        sampled = [self._accept(item) if item.samples else [] for item in plan.batch]
        logprobs, prompts = {}, {}
        for item, tokens in zip(plan.batch, sampled, strict=True):
            sequence, first = item.sequence, item.sequence.num_computed_tokens
            if width := sequence.params.beam_width:
                likely = [(1 + (token * (i + 1) + i) % 94, -0.1 - 0.3 * i) for token in tokens for i in range(width)]
                logprobs[sequence] = [TokenLogprobs(tokens[0], -0.1, (*likely, (EOS, -1.0)))] if tokens else []
            elif sequence.params.logprobs is not None:
                logprobs[sequence] = [self._told(token) for token in tokens]
            if sequence.params.prompt_logprobs is not None:
                computed = sequence.token_ids[: sequence.num_prompt_tokens][
                    first + 1 : first + item.num_scheduled_tokens + 1
                ]
                prompts[sequence] = [self._told(token) for token in computed]
        return StepResult(sampled, logprobs, prompts)

    def transfer(self, sources, targets, *, to_host):
        origin, goal = (self.cache, self.host) if to_host else (self.host, self.cache)
        goal[targets] = origin[sources]
        if not to_host:
            origin[sources] = -1  # a host block is read once
        return 100 * len(sources)

    def read(self, blocks):
        return self.cache[blocks].tobytes()

    def write(self, host_blocks, contents):
        self.host[host_blocks] = np.frombuffer(contents, self.host.dtype).reshape(len(host_blocks), -1)

    @staticmethod
    def _told(token):
        return TokenLogprobs(token, -token / 100, ((token + 1, -0.001),), token / 50)

    def _accept(self, item):
        """The tokens behind a sequence: those of its draft as far as the rule gives them too, and one more."""
        if not item.draft:
            return self._sample(item.sequence)
        sequence, kept = item.sequence, []
        for position, token in enumerate(item.draft, start=len(sequence.token_ids)):
            self._store(sequence, position, token)
        for token in [*item.draft, None]:
            length = len(sequence.token_ids) + len(kept)
            context = [int(self.cache[self._slot(sequence, p)]) for p in range(length)]
            assert context == sequence.token_ids + kept, "the cache holds another sequence's tokens"
            kept.append(self._next(sequence, context))
            if kept[-1] != token:
                return kept
        return kept

    def _sample(self, sequence):
        context = [int(self.cache[self._slot(sequence, p)]) for p in range(len(sequence.token_ids))]
        assert context == sequence.token_ids, "the cache holds another sequence's tokens"
        room = len(sequence.block_table) * self.cache.shape[1] - len(context)
        sampled = [self._next(sequence, context)]
        while len(sampled) < min(self.burst, room + 1):
            self._store(sequence, len(context), sampled[-1])
            context.append(sampled[-1])
            sampled.append(self._next(sequence, context))
        return sampled

    def _store(self, sequence, position, token):
        self.cache[self._slot(sequence, position)] = token

    def _slot(self, sequence, position):
        size = self.cache.shape[1]
        return sequence.block_table[position // size], position % size

    def _next(self, sequence, context):
        answer = self.script.get(tuple(context[: sequence.num_prompt_tokens]))
        if answer is not None:
            generated = len(context) - sequence.num_prompt_tokens
            return answer[generated] if generated < len(answer) else EOS
        return 1 + sum((i + 1) * t for i, t in enumerate(context)) % 94


def make_engine(trail, **options):
    """An engine over a CacheRunner that reports to `trail`."""
    return make_observed_engine(Observer(trail), **options)


def make_observed_engine(
    observer, *, blocks=64, block_size=4, max_seqs=8, budget=64, clock=now_ns, scheduling=None, **runner
):
    """An engine over a CacheRunner. Without a watermark, it preempts soon. `scheduling`: options of its scheduler."""
    scheduling = {"watermark_blocks": 0} | (scheduling or {})
    scheduler = Scheduler(BlockManager(blocks, block_size), max_seqs=max_seqs, max_batched_tokens=budget, **scheduling)
    return Engine(scheduler, CacheRunner(blocks, block_size, **runner), observer, eos_ids=[EOS], clock=clock)


def decode_printable(ids):
    """One printable character for each token, none for EOS."""
    return "".join(chr(i + 31) for i in ids if i != EOS)


def make_request(trail, *prompts, decode=decode_printable, name="", **params):
    """A request for prompts of token ids, greedy unless said otherwise."""
    sampling = SamplingParams(**{"max_tokens": 8, "temperature": 0.0, **params})
    started = trail.start_request(operation="text_completion", model="m", request_id=name)
    return Request.of(
        prompts, sampling, trail=started, sink=lambda _: None, text=lambda _: TextStream(decode, sampling.stop)
    )


def make_sequence(trail, prompt, **options):
    """The one sequence of a request."""
    [sequence] = make_request(trail, prompt, **options).sequences
    return sequence


def run_all(engine, sequences):
    """Run to the end; {sequence: (output tokens, text, finish reason)}, of all that ran if none are given."""
    for request in dict.fromkeys(sequence.request for sequence in sequences):
        engine.add(request)
    text = defaultdict(str)
    reason = {}
    while engine.busy:
        for output in engine.step():
            if output.error:
                raise output.error
            text[output.sequence] += output.text
            reason[output.sequence] = output.finish_reason
    return {s: (s.token_ids[s.num_prompt_tokens :], text[s], reason[s]) for s in sequences or reason}


class Gate(threading.Event):
    """Closed until `set`: holds the engine within a step."""


def ticking():
    """A clock that advances a millisecond each time it is read."""
    return itertools.count(1_800_000_000_000_000_000, 1_000_000).__next__
