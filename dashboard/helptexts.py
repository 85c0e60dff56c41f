"""What each number means, in the field's terms: shown beside it, and in docs/dashboard.md."""

from __future__ import annotations

from typing import Final

HELP: Final = {
    "TTFT": "Time to first token: from arrival to the first output token. Contains queueing, cold start and prefill.",
    "TPOT": "Time per output token after the first: (last − first) / (n − 1). Undefined for fewer than two tokens.",
    "ITL": "Inter-token latency: the gap before each token after the first, one value per token.",
    "E2E": "From arrival to the last token.",
    "Queue": "Time before the engine first scheduled the request; only engines that report it.",
    "Attainment": "Good requests / all requests except those the client cancelled. Errors are bad; a request still "
    "in flight that is already past a threshold is bad now, and so is one whose engine died.",
    "Budget left": "Share of the error budget (1 − objective) that is left in the SLO's window. Negative: overspent.",
    "Goodput": "Requests per second that met every threshold of their SLO.",
    "Requests": "Requests that ended in this range.",
    "Requests/s": "Requests that ended in this range, per second.",
    "Good": "Ended ok and met every threshold of every SLO that selects it.",
    "Failed": "Ended with an error; bad for every SLO.",
    "Cancelled": "The client went away; in no SLO's denominator.",
    "In flight": "Announced and not yet ended. Late: already past a threshold, and so a violation now.",
    "Lost": "Announced, never ended, and not heard of again: its engine died. Counts as bad.",
    "Output tokens/s": "Output tokens of all requests that ended in this range, per second.",
    "Running": "Requests in the engines' batches now.",
    "Waiting": "Requests in the engines' queues now.",
    "KV used": "The fullest engine's share of KV-cache blocks in use. At 100 % running requests are preempted.",
    "KV blocks evicted": "Blocks that the engines dropped from the KV cache in this range, for preemption or for room.",
    "Preemptions": "Running requests that lost their KV cache in this range and must be computed again.",
    "Cold starts": "Engine starts that began in this range: loading weights, compilation, warm-up.",
    "Input tokens": "Tokens of the prompt.",
    "Cached tokens": "Prompt tokens whose KV cache was already there and needed no prefill.",
    "Output tokens": "Tokens that the request was answered with, hidden reasoning included.",
    "Burn rate": "How many times faster than sustainable the error budget is being spent. An alert fires while both "
    "windows are above its threshold.",
    "Prefill interference": "Engine steps that prefilled others' prompts while this request waited for its next token.",
}
