"""Follows every token of transformers' `generate` with a streamer that stamps them.

    .venv/bin/tokentrail up                    # in another terminal: collector on 4318, dashboard on 8501
    .venv/bin/python examples/transformers_generate.py

The model is a tiny random one, so that nothing is downloaded; put `AutoModelForCausalLM.from_pretrained(…)` in its
place and nothing else changes. `generate` streams one request at a time.
"""

from __future__ import annotations

from itertools import count
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.generation.streamers import BaseStreamer

from tokentrail import Phase, RequestTrail, Trail, now_ns

STEPS = count()
"""Step numbers, which count up as long as the process lives."""


class TrailStreamer(BaseStreamer):
    """`generate` calls `put` with the prompt, then with each token, and `end` after the last."""

    def __init__(self, trail: Trail, request: RequestTrail) -> None:
        self.trail, self.request = trail, request
        self.prefill = 0
        self.since: int | None = None

    def put(self, value: torch.Tensor) -> None:
        """The prompt starts PREFILL, which the first token ends; each token ends a step."""
        now = now_ns()
        if self.since is None:
            self.prefill = value.numel()
            self.request.phase(Phase.PREFILL, now)
        else:
            decode = 0 if self.prefill else 1
            self.trail.step(
                next(STEPS), self.since, now, [self.request],
                prefill_tokens=self.prefill, decode_tokens=decode, running=1,
            )  # fmt: skip
            self.prefill = 0
        self.since = now

    def end(self) -> None:
        """`generate` below ends the request, because it knows the finish reason."""


def generate(trail: Trail, model: Any, prompt: list[int], max_tokens: int) -> list[int]:
    """`model.generate` as one traced request; an exception ends the request as an error and passes on."""
    with trail.request(
        operation="text_completion", model="tiny-llama", provider="transformers", input_tokens=len(prompt)
    ) as request:
        streamer = TrailStreamer(trail, request)
        output = model.generate(torch.tensor([prompt]), max_new_tokens=max_tokens, do_sample=False, streamer=streamer)
        tokens: list[int] = output[0, len(prompt) :].tolist()
        request.end(streamer.since, finish_reason="length" if len(tokens) == max_tokens else "stop")
    return tokens


trail = Trail.from_env(service_name="transformers-example")
with trail.cold_start("tiny-llama") as cold, cold.phase("load_weights"):
    torch.manual_seed(1)
    config = LlamaConfig(vocab_size=99, hidden_size=32, intermediate_size=64, num_hidden_layers=2)
    model = LlamaForCausalLM(config)
for length in (5, 50, 500):
    tokens = generate(trail, model, prompt=[3 + i % 96 for i in range(length)], max_tokens=16)
    print(f"{length} prompt tokens, {len(tokens)} output tokens")
trail.shutdown()
