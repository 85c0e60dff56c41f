"""Help text of each number, shown by the question mark beside it. docs/numbers.md has the full definitions."""

from __future__ import annotations

from typing import Final

HELP: Final = {
    "TTFT": "Time to first token: from arrival to the first output token. Contains queueing, cold start and prefill.",
    "TPOT": "Time per output token after the first: (last − first) / (n − 1). Undefined for fewer than two tokens.",
    "ITL": "Inter-token latency: the gap before each token after the first, one value per token.",
    "E2E": "From arrival to the last token.",
    "Queue": "Time before the engine first scheduled the request. Known only where the engine reports it.",
    "Attainment": "Good requests / judged requests. Judged are the requests that an SLO selects, except three kinds: "
    "cancelled before a threshold was missed, failed with an error that the SLO excludes, and undetermined (a "
    "threshold needs a value that nobody reported, or nobody tells whether the request ended well). Other errors are "
    "bad. So are requests in flight that are already past a threshold, and requests of an engine process that died.",
    "Budget left": "Share of the error budget (1 − objective) that is left in the SLO's window. Negative: overspent.",
    "Goodput": "Requests per second that met every threshold of their SLO. Unknown when no SLO can judge a request.",
    "Requests": "Requests that ended in this range.",
    "Requests/s": "Requests that ended in this range, per second.",
    "Failed": "Ended with an error. Bad for every SLO that does not exclude this type of error.",
    "In flight": "Announced and not yet ended. Late: already past a threshold, so bad now.",
    "Lost": "Announced, never ended, and not announced again: the engine process died. Counts as bad.",
    "Output tokens/s": "Output tokens per second, of the requests that ended in this range and report their tokens.",
    "Running": "Requests in the batch of each engine process at its newest step, summed.",
    "Waiting": "Requests in the queue of each engine process at its newest step, summed.",
    "KV used": "Share of KV-cache blocks in use in the fullest engine process. At 100 %, requests are preempted.",
    "KV blocks evicted": "Blocks evicted in this range: taken from running requests, or cached blocks dropped.",
    "Preemptions": "Times that a running request lost its KV-cache blocks. They are computed again, or "
    "copied back from the host's memory.",
    "Cold starts": "Starts of engine processes that overlap this range: loading weights, compilation, warm-up.",
    "Input tokens": "Tokens of the prompt.",
    "Cached tokens": "Prompt tokens that needed no prefill: their keys and values were in the KV cache.",
    "Output tokens": "Tokens generated for the request, hidden reasoning included.",
    "Burn rate": "Speed at which the error budget is spent: at 1× it lasts exactly the SLO's window. An alert fires "
    "while the burn rate of both of its windows is above its threshold.",
    "Why it took so long": "The causes add up to TTFT and to the time after it. Typical are the middle half of "
    "the requests of the same model and class that ended in the hour before.",
    "Why it waited": "Why the engine left the request in the queue, or preempted, and for how long. "
    "Few engines report this, and only for requests that have ended.",
    "Prefill interference": "Engine steps that prefilled prompts of other requests while this one waited for a token.",
}
