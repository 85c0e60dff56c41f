"""What a simulated engine process is, and what comes to it."""

from __future__ import annotations

from dataclasses import dataclass

from tokentrail import Status

US, MS, S = 1_000, 1_000_000, 1_000_000_000


@dataclass(frozen=True)
class Law:
    """A step takes (step + prompt·[some] + token·P + attention·A + sequence·D + context·C) · noise, in ns.

    P prompt tokens, A these times the tokens before them, D decoding sequences, C the tokens of their context.
    The noise is lognormal.
    """

    step: float
    token: float
    sequence: float
    prompt: float = 2.0 * MS
    attention: float = 1.0
    context: float = 20.0
    gap: float = 0.4 * MS
    noise: float = 0.03


@dataclass(frozen=True)
class Limits:
    """What an engine takes at once: requests, tokens of a step, KV blocks of 16 tokens, and requests that wait."""

    seqs: int
    batched_tokens: int
    kv_blocks: int
    queue: int = 96


@dataclass(frozen=True)
class Planned:
    """A request to come. `at` is in unix ns; the other numbers are tokens. It ends by `status` after its answer."""

    at: int
    tenant: str
    slo_class: str
    prompt: int
    cached: int
    answer: int
    status: Status = Status.OK


@dataclass(frozen=True)
class Process:
    """One engine process. It starts at `start`, loads for `loading` ns, and takes no step from `hangs` on (unix ns)."""

    service: str
    instance: str
    engine: str
    model: str
    variant: str
    law: Law
    limits: Limits
    start: int
    loading: int
    hangs: int | None = None
