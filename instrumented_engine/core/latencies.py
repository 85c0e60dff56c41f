"""Latency histograms with vLLM's names and buckets, counted in the engine's thread and read by `/metrics`."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate

from instrumented_engine.core.request import Request
from instrumented_engine.core.sequence import Output

FIRST_TOKEN_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
    640.0, 2560.0,
)  # fmt: skip
TOKEN_S = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
REQUEST_S = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip


class Histogram:
    """Counts of values by upper bound, which belongs to its bucket."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.sum = 0.0
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)

    def observe(self, value_ns: int) -> None:
        """Count a duration in ns."""
        value = value_ns / 1e9
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    @property
    def buckets(self) -> list[tuple[str, int]]:
        """(upper bound in seconds, number of values up to it)."""
        return list(zip([*map(str, self._bounds), "+Inf"], accumulate(self._counts), strict=True))


class Latencies:
    """The histograms, by vLLM's names, and its counters of tokens, of preemptions, and of requests by finish reason.

    They outlive the engine: a model that was unloaded and loaded again counts on.
    """

    def __init__(self) -> None:
        self.first_token = Histogram(FIRST_TOKEN_S)
        self.between_tokens = Histogram(TOKEN_S)
        self.per_output_token = Histogram(TOKEN_S)
        self.end_to_end = Histogram(REQUEST_S)
        self.queued = Histogram(REQUEST_S)
        self.prefill = Histogram(REQUEST_S)
        self.decode = Histogram(REQUEST_S)
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.cached_tokens = 0
        self.drafted_tokens = 0
        self.accepted_tokens = 0
        self.preemptions = 0
        self.finished: dict[str, int] = {"stop": 0, "length": 0, "abort": 0}

    def emitted(self, output: Output, at_ns: int) -> None:
        """A step gave a sequence tokens. Those behind the first come at the same time."""
        sequence, request = output.sequence, output.sequence.request
        if not request.first_token_ns:
            request.first_token_ns = at_ns
            self.first_token.observe(at_ns - request.arrival_ns)
            self.prompt_tokens += request.num_prompt_tokens
        if sequence.last_token_ns:
            self.between_tokens.observe(at_ns - sequence.last_token_ns)
        for _ in range(output.num_tokens - 1):
            self.between_tokens.observe(0)
        sequence.last_token_ns = at_ns
        self.output_tokens += output.num_tokens

    def ended(self, request: Request, at_ns: int) -> None:
        """A request met its last stop condition."""
        self.end_to_end.observe(at_ns - request.arrival_ns)
        self.queued.observe(request.scheduled_ns - request.arrival_ns)
        self.prefill.observe((request.first_token_ns or at_ns) - request.scheduled_ns)
        if request.first_token_ns:
            self.decode.observe(at_ns - request.first_token_ns)
        else:  # an encoder
            self.prompt_tokens += request.num_prompt_tokens
        self.drafted_tokens += request.num_drafted_tokens
        self.accepted_tokens += request.num_accepted_tokens
        for sequence in request.sequences:
            self.finished[sequence.finish_reason] += 1
        if len(request.sequences) == 1 and (gaps := request.num_output_tokens - 1) > 0:
            self.per_output_token.observe((at_ns - request.first_token_ns) // gaps)
