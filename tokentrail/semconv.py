"""Names on the wire. Span names and attribute keys are spelled here and nowhere else.

Keys that OpenTelemetry's semantic conventions define (`SCHEMA_URL` names the version) are used as they are; everything
else lives under ``tokentrail.``. The SDK writes these names, the collector's SQL reads them (`collector/sql/`, which a
test holds to this file), and the dashboard labels with them. Times on the wire are unix nanoseconds and always
multiples of 1,000: a token is stored in microseconds, and sums must stay exact.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final

SCOPE_NAME: Final = "tokentrail"
SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.44.0"
"""The version of OpenTelemetry's semantic conventions that defines the names used here."""

# --- span names -----------------------------------------------------------------------------------------------

TOKEN_SPAN: Final = "tokentrail.token"
"""One output token of one request. Starts when the token before it was emitted (the first: at arrival) and ends
when it was: token 0's duration is TTFT, the others' ITL, their sum the time to the last token."""

PHASE_SPAN: Final = "tokentrail.phase"
"""One phase of a request (`Phase`). The phases of a request neither overlap nor leave a gap."""

OPEN_SPAN: Final = "tokentrail.request.open"
"""Announcement of a request in flight, sent on arrival and again while it runs: start = arrival, end = time of the
announcement, parent = the request span that will follow."""

STEP_SPAN: Final = "tokentrail.step"
"""One iteration of the engine's schedule → run → postprocess loop; belongs to the engine, not to a request."""

KV_SPAN_PREFIX: Final = "tokentrail.kv."
"""`tokentrail.kv.evict`, `.offload`, `.restore` (`KvEvent`): blocks that left or re-entered the KV cache."""

COLD_START_SPAN: Final = "tokentrail.cold_start"
"""Start of an engine until it can serve. Its children are named `tokentrail.cold_start.<sub-phase>`."""


class Phase(StrEnum):
    """The state of a request between its arrival and its end."""

    QUEUED = "queued"
    COLD_START = "cold_start"
    PREFILL = "prefill"
    DECODE = "decode"
    PREEMPTED = "preempted"
    KV_TRANSFER = "kv_transfer"
    STALLED = "stalled"


class KvEvent(StrEnum):
    """A change of KV-cache blocks."""

    EVICT = "evict"
    OFFLOAD = "offload"
    RESTORE = "restore"


class Wait(StrEnum):
    """The resources that a request can wait for."""

    BATCH = "batch"
    """A place among the running requests."""
    TOKENS = "tokens"
    """Room in the step's token budget."""
    KV = "kv"
    """Free blocks of the KV cache."""
    PRIORITY = "priority"
    """Its turn: a request that arrived later has a higher priority."""


class Status(StrEnum):
    """How a request ended. `cancelled`: the client went away. `unknown`: nobody tells whether it ended well.

    An SLO counts a cancelled request as bad if it had missed a threshold by then, and does not judge it otherwise. One
    whose end is unknown is bad then too, and never good.
    """

    OK = "ok"
    ERROR = "error"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"


# --- resource attributes --------------------------------------------------------------------------------------

SERVICE_NAME: Final = "service.name"
SERVICE_INSTANCE_ID: Final = "service.instance.id"
VARIANT: Final = "tokentrail.variant"
"""The experiment label: which technique or configuration this process runs."""
ENGINE: Final = "tokentrail.engine"
"""The product that runs in this process (`vllm`, `sglang`, `transformers`), when the SDK records it from inside."""
DISAGGREGATION: Final = "tokentrail.disaggregation"
"""`prefill` or `decode`: this engine's part of a disaggregated request. Both engines' spans are one request."""
SCRAPER: Final = "tokentrail.scraper"
"""The collector that scraped these metrics; absent from metrics that were sent."""
DEVICE_NAME: Final = "tokentrail.device.name"
DEVICE_COUNT: Final = "tokentrail.device.count"

# --- request span (GenAI semantic conventions) ----------------------------------------------------------------

OPERATION_NAME: Final = "gen_ai.operation.name"
EMBEDDINGS: Final = "embeddings"
"""The operation that makes vectors of texts, and no output tokens."""
PROVIDER_NAME: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
RESPONSE_MODEL: Final = "gen_ai.response.model"
RESPONSE_ID: Final = "gen_ai.response.id"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
TIME_TO_FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"
"""The value of `TIME_TO_FIRST_TOKEN`, sent for streamed requests only (`REQUEST_STREAM`)."""
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
CACHED_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
CACHE_CREATION_TOKENS: Final = "gen_ai.usage.cache_write.input_tokens"
"""`gen_ai.usage.cache_creation.input_tokens` before the conventions' own first release."""
REASONING_TOKENS: Final = "gen_ai.usage.reasoning.output_tokens"
IMAGE_INPUT_TOKENS: Final = "gen_ai.usage.image.input_tokens"
AUDIO_INPUT_TOKENS: Final = "gen_ai.usage.audio.input_tokens"
IMAGE_OUTPUT_TOKENS: Final = "gen_ai.usage.image.output_tokens"
AUDIO_OUTPUT_TOKENS: Final = "gen_ai.usage.audio.output_tokens"
REQUEST_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
REQUEST_TEMPERATURE: Final = "gen_ai.request.temperature"
REQUEST_TOP_P: Final = "gen_ai.request.top_p"
REQUEST_TOP_K: Final = "gen_ai.request.top_k"
REQUEST_STREAM: Final = "gen_ai.request.stream"
CHOICE_COUNT: Final = "gen_ai.request.choice.count"
CONVERSATION_ID: Final = "gen_ai.conversation.id"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
ERROR_TYPE: Final = "error.type"
"""Always there on errors."""
OTHER_ERROR: Final = "_OTHER"
"""The value of `ERROR_TYPE` for an error of no known type."""

# --- request span (ours) --------------------------------------------------------------------------------------

TENANT: Final = "tokentrail.tenant"
SLO_CLASS: Final = "tokentrail.slo_class"
LABEL_PREFIX: Final = "tokentrail.label."
"""`tokentrail.label.<name>`: a label that the sender chose (text, a number, true or false), of a request, or in a
resource, of all requests of a process."""
LABEL_NAME: Final = re.compile("[A-Za-z][A-Za-z0-9_.-]{0,63}")
"""The names that a label may have."""
MOST_LABELS: Final = 16
"""Labels of one request."""
LONGEST_LABEL: Final = 256
"""Characters of a label's value. Of a longer one the first 239 are kept, and `…` with 16 digits of its SHA-256 behind
them."""
STATUS: Final = "tokentrail.status"
"""A `Status`; the OTLP status code alone cannot say `cancelled`."""
FINISH_REASON: Final = "tokentrail.finish_reason"
"""The first finish reason as a plain string: the arrays of `gen_ai.response.finish_reasons` cannot be declared to
ClickHouse's Protobuf reader, so it is sent both ways."""
PREEMPTIONS: Final = "tokentrail.preemptions"
TIME_TO_FIRST_TOKEN: Final = "tokentrail.time_to_first_token"
"""TTFT: seconds (double) from arrival to the first token; absent when no token was emitted."""
TIME_TO_LAST_TOKEN: Final = "tokentrail.time_to_last_token"
"""Seconds (double) from arrival to the last token; differs from the span's duration when the request failed or was
cancelled later. An announcement has the latest one so far."""
LONGEST_GAP: Final = "tokentrail.longest_gap"
"""Seconds (double): the longest wait between two tokens of one answer, or between two arrivals that a client or a proxy
saw. Where the request failed or was cancelled, the wait from the last token to the end counts too. 0: all came at once.
Absent without tokens, or when records of some were lost. An announcement has the longest so far."""
LONGEST_GAP_INDEX: Final = "tokentrail.longest_gap.index"
"""The place in its answer, counted from 0, of the token (or the arrival) that was waited for."""
CHOICES: Final = "tokentrail.choices"
"""The number of choices that got tokens; absent for a request with one answer."""
TIME_BETWEEN_TOKENS: Final = "tokentrail.time_between_tokens"
"""Seconds (double) from the first token of a choice to its last, summed over the choices; absent for a request with one
answer. TPOT = this / (output tokens - choices)."""
ARRIVALS: Final = "tokentrail.arrivals"
"""Number of chunks with output, of a request that a proxy or a client recorded. Its token spans are the arrivals of
these chunks, so their number is not the number of output tokens, which is absent unless the answer told it."""
ARRIVED_TOKENS: Final = "tokentrail.arrived_tokens"
"""Number of output tokens that these chunks brought one after another, when it is not all of them: a hosted model does
not send its reasoning. 0: it is not known, and so there is no TPOT."""
LATER_ARRIVALS: Final = "tokentrail.later_arrivals"
"""Number of chunks with text that came after the first of each choice, where TPOT is not known. Each brought a token or
more, so TPOT is at most `TIME_BETWEEN_TOKENS` / this."""
DROPPED_TOKENS: Final = "tokentrail.dropped_tokens"
"""Number of the request's tokens that were lost for want of room; absent when there are none. The request's counts and
times are those of the tokens that were recorded, also of the ones that were lost later."""
ABANDONED: Final = "abandoned"
"""`error.type` of a request that nobody ended."""
SAMPLING_WEIGHT: Final = "tokentrail.sampling.weight"
"""The number of requests (double) that this one stands for, since others like it were left out. Absent: 1. 0: it was
sent for its end alone, since it had been announced."""
DRAFTED_TOKENS: Final = "tokentrail.drafted_tokens"
"""Tokens that speculative decoding proposed for the request; absent without a draft."""
ACCEPTED_TOKENS: Final = "tokentrail.accepted_tokens"
"""Drafted tokens that the model sampled too."""
PERPLEXITY: Final = "tokentrail.perplexity"
"""The perplexity (double, at least 1) of the request's output tokens by the model's own logits: e to the power of their
mean negative log-probability. Absent unless somebody asked for log-probabilities."""
MEAN_ENTROPY: Final = "tokentrail.mean_entropy"
"""The mean entropy (double, nats) of the distributions that the output tokens are from; absent as `PERPLEXITY` is."""
TIME_TO_FIRST_VISIBLE_TOKEN: Final = "tokentrail.time_to_first_visible_token"
"""Seconds (double) from arrival to the first token that is no hidden reasoning; absent when it is not known."""
BEAM_WIDTH: Final = "tokentrail.beam_width"
"""Beams of a request that is answered by beam search; absent for others."""
PRIORITY: Final = "tokentrail.priority"
"""The request's priority, as in vLLM: the lowest number goes first."""
WAIT_TIME_PREFIX: Final = "tokentrail.wait_time."
"""`tokentrail.wait_time.<reason>`: nanoseconds (int) in which the request's first answer waited for a `Wait`. Absent
when 0 or not known."""
PHASE_TIME_PREFIX: Final = "tokentrail.phase_time."
"""`tokentrail.phase_time.<phase>`: nanoseconds (int) that the request spent in a phase, summed; absent when 0."""

# --- token, phase, step, KV and cold-start spans --------------------------------------------------------------

TOKEN_INDEX: Final = "tokentrail.token.index"
"""The place of a token in its answer, counted from 0. The SDK leaves it out, since the span id tells it
(`TOKEN_ID_STRIDE`); a sender with other ids sends it, and the collector reads both."""
CHOICE_INDEX: Final = "tokentrail.choice.index"
"""The answer that a token belongs to, where a request has several (`n` > 1); absent where it has one. Token indices and
durations are those of the choice."""
STEP: Final = "tokentrail.step"
"""Step number, counted from 0 in each engine process: joins a token to the step that made it."""
PHASE_NAME: Final = "tokentrail.phase.name"
PHASE_TOKENS: Final = "tokentrail.phase.tokens"
"""Tokens that a prefill phase computes of its own request; without it, those of the prompt that no cache had."""

LIMIT_PREFIX: Final = "tokentrail.engine."


class Limit(StrEnum):
    """What an engine may do at once, told once a start: attributes `tokentrail.engine.<name>` of `COLD_START_SPAN`."""

    MAX_SEQS = "max_seqs"
    """Sequences in one step."""
    MAX_BATCHED_TOKENS = "max_batched_tokens"
    """Tokens in one step."""
    BLOCK_SIZE = "block_size"
    """Tokens in a block of the KV cache."""
    KV_BLOCKS = "kv_blocks"
    WATERMARK_BLOCKS = "watermark_blocks"
    """Blocks that stay free for each running sequence when another one is admitted."""
    CHUNKED_PREFILL = "chunked_prefill"
    """A prompt may be computed in several steps."""
    PREFIX_CACHING = "prefix_caching"
    POLICY = "policy"
    """The order in which requests are admitted, such as `fcfs` or `priority`."""


STEP_PREFILL_TOKENS: Final = "tokentrail.step.prefill_tokens"
STEP_DECODE_TOKENS: Final = "tokentrail.step.decode_tokens"
STEP_RUNNING: Final = "tokentrail.step.running"
STEP_WAITING: Final = "tokentrail.step.waiting"
STEP_PREEMPTED: Final = "tokentrail.step.preempted"
STEP_KV_USED: Final = "tokentrail.step.kv_blocks_used"
STEP_KV_TOTAL: Final = "tokentrail.step.kv_blocks_total"
STEP_KV_EVICTED: Final = "tokentrail.step.kv_blocks_evicted"
STEP_ATTRIBUTES: Final = (
    STEP,
    STEP_PREFILL_TOKENS,
    STEP_DECODE_TOKENS,
    STEP_RUNNING,
    STEP_WAITING,
    STEP_PREEMPTED,
    STEP_KV_USED,
    STEP_KV_TOTAL,
    STEP_KV_EVICTED,
)
"""Numbers of a step that most engines know."""
STEP_WAITING_FOR_BATCH: Final = "tokentrail.step.waiting_for_batch"
"""Requests that wait since as many run as may; they are among `STEP_WAITING`, as those of the next three are."""
STEP_WAITING_FOR_TOKENS: Final = "tokentrail.step.waiting_for_tokens"
"""Requests that wait since the step computes as many tokens as it may."""
STEP_WAITING_FOR_KV: Final = "tokentrail.step.waiting_for_kv"
"""Requests that wait since too few blocks of the KV cache are free."""
STEP_WAITING_FOR_PRIORITY: Final = "tokentrail.step.waiting_for_priority"
"""Requests that wait since a request with a higher priority goes first, though it arrived later."""
STEP_CACHED_TOKENS: Final = "tokentrail.step.cached_tokens"
"""Prompt tokens that the step did not compute, since a prefix cache had them."""
STEP_DRAFTED_TOKENS: Final = "tokentrail.step.drafted_tokens"
"""Tokens that speculative decoding proposed in the step. The accepted ones are among the step's tokens."""
STEP_RETRIES: Final = "tokentrail.step.retries"
"""Attempts to compute the step that failed, by an error or for lack of memory; its parts were then computed alone."""
STEP_GRAPH_ROWS: Final = "tokentrail.step.graph_rows"
"""Sequences for which the CUDA graph was captured that computed the step, its padding among them. Absent if the step's
kernels were launched one by one, or nobody says."""
STEP_DEVICE_NS: Final = "tokentrail.step.device_ns"
"""Nanoseconds from the first copy of the step until the device was done with it."""
STEP_COMPUTE_NS: Final = "tokentrail.step.compute_ns"
"""Nanoseconds that the step's arithmetic takes at the peak that was measured for the device. Divided by the step's
duration it is the MFU."""
STEP_MEMORY_NS: Final = "tokentrail.step.memory_ns"
"""Nanoseconds that reading the step's weights, keys and values takes at the device's measured bandwidth. Divided by the
step's duration it is the MBU."""
STEP_DETAILS: Final = (
    STEP_WAITING_FOR_BATCH,
    STEP_WAITING_FOR_TOKENS,
    STEP_WAITING_FOR_KV,
    STEP_WAITING_FOR_PRIORITY,
    STEP_CACHED_TOKENS,
    STEP_DRAFTED_TOKENS,
    STEP_RETRIES,
    STEP_GRAPH_ROWS,
    STEP_DEVICE_NS,
    STEP_COMPUTE_NS,
    STEP_MEMORY_NS,
)
"""Numbers of a step that few engines know."""

KV_BLOCKS: Final = "tokentrail.kv.blocks"
KV_BYTES: Final = "tokentrail.kv.bytes"
"""Bytes of keys and values that were copied between the device and the host."""
KV_BENEFICIARY: Final = "tokentrail.kv.beneficiary"
"""The trace id (32 hex digits) of the request for which the blocks moved; absent if it is not known."""
KV_REASON: Final = "tokentrail.kv.reason"
"""`preemption` (the victim's trace and span id are the event's parent), `cache_full` for cached blocks dropped,
`handed_over` for blocks that one engine computed for another (`hand_over_…`: it could not)."""

# --- span ids -------------------------------------------------------------------------------------------------

TOKEN_ID_STRIDE: Final = 0x9E3779B97F4A7C15
"""A token's span id is ``(request span id + (index + 1) · stride) mod 2**64`` over the ids read as big-endian
integers: distinct within a request (the stride is odd), computed for a whole array at once, and never stored. The
request's span id and not its trace id, because one trace may hold many requests. For a token of a choice it is
``(request span id + ((choice + 1) · 2**32 + index + 1) · stride) mod 2**64``."""
TOKEN_ID_INVERSE: Final = pow(TOKEN_ID_STRIDE, -1, 1 << 64)
"""Gives the index back: ``(token span id - request span id) · inverse mod 2**64`` is ``index + 1``, or for a token of a
choice ``(choice + 1) · 2**32 + index + 1``."""
