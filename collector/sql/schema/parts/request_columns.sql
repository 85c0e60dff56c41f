-- The columns of a request that views fill.
end               DateTime64(9, 'UTC')    CODEC(Delta, ZSTD),
start             DateTime64(9, 'UTC')    CODEC(Delta, ZSTD),
trace_id          FixedString(16),
span_id           FixedString(8),
parent_span_id    String,                                   -- '' for a root span
request_id        String,
engine            LowCardinality(String),                   -- the product that sent the spans: tokentrail, vllm, …
service           LowCardinality(String),
instance          LowCardinality(String),
process_tenant    LowCardinality(String),                   -- the tenant that the process's resource names, which is that of its key; '': for all
variant           LowCardinality(String),
vantage           LowCardinality(String),                   -- server | client
operation         LowCardinality(String),
model             LowCardinality(String),
tenant            LowCardinality(String),
slo_class         LowCardinality(String),
labels            Map(LowCardinality(String), LowCardinality(String)) CODEC(ZSTD),  -- by name (parts/labels.sql)
status            LowCardinality(String),                   -- ok | error | cancelled | unknown
error_type        LowCardinality(String),
finish_reason     LowCardinality(String),
input_tokens      Nullable(UInt32)        CODEC(NONE),      -- NULL, here and below: not reported, or not a sensible number
output_tokens     Nullable(UInt32)        CODEC(NONE),
cached_tokens     Nullable(UInt32),
reasoning_tokens  Nullable(UInt32),
image_input_tokens Nullable(UInt32),                        -- of pictures and sound among the input tokens, and among the output tokens
audio_input_tokens Nullable(UInt32),
image_output_tokens Nullable(UInt32),
audio_output_tokens Nullable(UInt32),
drafted_tokens    Nullable(UInt32),
accepted_tokens   Nullable(UInt32),
perplexity        Nullable(Float64),                        -- of the output tokens, as is the mean entropy
mean_entropy      Nullable(Float64),                        -- nats
preemptions       Nullable(UInt32),
ttft_ns           Nullable(UInt64),                         -- NULL also: no token was emitted
tpot_ns           Nullable(Float64),                        -- NULL also: fewer than two tokens in each answer
tpot_at_most_ns   Nullable(Float64),                        -- what a TPOT that is not known cannot exceed; NULL also: it is known
e2e_ns            UInt64,
queue_ns          Nullable(UInt64),
cold_start_ns     Nullable(UInt64),
prefill_ns        Nullable(UInt64),
decode_ns         Nullable(UInt64),
preempted_ns      Nullable(UInt64),
kv_transfer_ns    Nullable(UInt64),
stalled_ns        Nullable(UInt64),
first_visible_ns  Nullable(UInt64),                         -- arrival to the first token that is no hidden reasoning
wait_batch_ns     Nullable(UInt64),                         -- parts of the wait for the first step; NULL also: none
wait_tokens_ns    Nullable(UInt64),
wait_kv_ns        Nullable(UInt64),
wait_priority_ns  Nullable(UInt64),
segment           String                  CODEC(ZSTD),
ingested_at       DateTime64(3, 'UTC')    CODEC(Delta, ZSTD),
weight            Float64                 DEFAULT 1,        -- how many requests this one stands for (docs/numbers.md)
choices           UInt32                  DEFAULT 1,       -- the number of its answers that got tokens
gap_ns            Nullable(UInt64),                         -- the longest wait between two tokens of one answer; NULL also: fewer than two
gap_index         Nullable(UInt32)                          -- the place in its answer of the token behind it
