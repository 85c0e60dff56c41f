-- The tables that queries read. Durations are nanoseconds unless the name says otherwise. A request belongs to the window
-- in which it ended. `segment` is the WAL segment that brought the row: one segment is inserted exactly once.
--
-- From the first release on, a change here needs a migration too (../migrations/README.md): these statements only create tables that are missing.

CREATE TABLE IF NOT EXISTS requests
(
    $request_columns,

    -- Aggregate queries read these columns in place of the ones above. They are narrow, not NULL and not compressed, because
    -- reading is most of the work. Whole microseconds, rounded up: 0 cannot exist (no token has been emitted, or one alone in each answer; a queue
    -- may be empty, and a reported TTFT of 0 is 1), 4294967294 is that or more, 4294967295 is not known. A TPOT that is not known and has a
    -- bound is its bound: it meets what the bound meets, and misses nothing (collector/slo/judge.py).
    ttft_us           UInt32 MATERIALIZED multiIf(
        ttft_ns IS NOT NULL, greatest(least(intDiv(assumeNotNull(ttft_ns) + 999, 1000), 4294967294), 1), output_tokens = 0, 0, 4294967295)
        CODEC(NONE),
    tpot_us           UInt32 MATERIALIZED multiIf(
        tpot_ns IS NULL AND tpot_at_most_ns IS NULL, if(output_tokens < 2 OR output_tokens = choices, 0, 4294967295),
        least(intDiv(toUInt64(least(ceil(ifNull(tpot_ns, ifNull(tpot_at_most_ns, 0))), 1e16)) + 999, 1000), 4294967294))
        CODEC(NONE),
    e2e_us            UInt32 MATERIALIZED least(intDiv(e2e_ns + 999, 1000), 4294967294) CODEC(NONE),
    queue_us          UInt32 MATERIALIZED if(queue_ns IS NULL, 4294967295, least(intDiv(assumeNotNull(queue_ns) + 999, 1000), 4294967294)) CODEC(NONE),
    is_sampled        Bool   MATERIALIZED weight != 1,
    gap_us            UInt32 MATERIALIZED multiIf(
        gap_ns IS NOT NULL, least(intDiv(assumeNotNull(gap_ns) + 999, 1000), 4294967294), output_tokens < 2 OR output_tokens = choices, 0, 4294967295)
        CODEC(NONE),
    -- Where no token was reasoning, the first one is visible.
    first_visible_us  UInt32 MATERIALIZED multiIf(
        first_visible_ns IS NOT NULL, greatest(least(intDiv(assumeNotNull(first_visible_ns) + 999, 1000), 4294967294), 1),
        reasoning_tokens = 0 OR output_tokens = 0, ttft_us, 4294967295)
        CODEC(NONE),
    INDEX by_trace trace_id TYPE bloom_filter(0.001) GRANULARITY 1,
    INDEX by_ingest ingested_at TYPE minmax GRANULARITY 1
)
ENGINE = MergeTree
PARTITION BY toDate(end)
ORDER BY (end, trace_id, span_id)
SETTINGS $durable,
         index_granularity = 8192, lightweight_mutation_projection_mode = 'rebuild';

-- A token takes two bytes. It has no time of its own: the request's start plus the durations of the tokens up to it is its
-- time. It has no span id: the id follows from the request's span id and the index.
CREATE TABLE IF NOT EXISTS tokens
(
    $token_columns,
    -- By which ITL looks a token's request up: one number in place of two ids. 0: a first token, which has no ITL.
    request_key       UInt64 MATERIALIZED if(token_index = 0, 0, cityHash64(trace_id, request_span_id)) CODEC(ZSTD)
)
ENGINE = MergeTree
PARTITION BY toDate(minute)
PRIMARY KEY (minute, trace_id, request_span_id, token_index)
ORDER BY (minute, trace_id, request_span_id, token_index, choice)
SETTINGS $durable,
         index_granularity = 8192, lightweight_mutation_projection_mode = 'rebuild';

CREATE TABLE IF NOT EXISTS phases
(
    minute            DateTime('UTC')         CODEC(Delta, ZSTD),   -- of its end
    trace_id          FixedString(16)         CODEC(ZSTD),
    request_span_id   FixedString(8)          CODEC(ZSTD),
    start             DateTime64(9, 'UTC')    CODEC(Delta, ZSTD),
    name              LowCardinality(String),
    duration_ns       UInt64                  CODEC(T64, ZSTD),
    tokens            Nullable(UInt32)        CODEC(T64, ZSTD)      -- computed in a prefill phase; NULL: not reported, or another phase
)
ENGINE = MergeTree
PARTITION BY toDate(minute)
ORDER BY (minute, trace_id, request_span_id, start)
SETTINGS $durable,
         index_granularity = 8192, lightweight_mutation_projection_mode = 'rebuild';

CREATE TABLE IF NOT EXISTS steps
(
    start             DateTime64(9, 'UTC')    CODEC(Delta, ZSTD),
    service           LowCardinality(String),
    instance          LowCardinality(String),
    process_tenant    LowCardinality(String),
    variant           LowCardinality(String),
    step              Nullable(UInt64)        CODEC(Delta, ZSTD),   -- NULL, here and below: absent, or no count
    duration_ns       UInt64                  CODEC(T64, ZSTD),
    prefill_tokens    Nullable(UInt32)        CODEC(T64, ZSTD),
    decode_tokens     Nullable(UInt32)        CODEC(T64, ZSTD),
    running           Nullable(UInt32)        CODEC(T64, ZSTD),
    waiting           Nullable(UInt32)        CODEC(T64, ZSTD),
    preempted         Nullable(UInt32)        CODEC(T64, ZSTD),
    kv_blocks_used    Nullable(UInt32)        CODEC(T64, ZSTD),
    kv_blocks_total   Nullable(UInt32)        CODEC(T64, ZSTD),
    kv_blocks_evicted Nullable(UInt32)        CODEC(T64, ZSTD),
    waiting_for_batch    Nullable(UInt32)     CODEC(T64, ZSTD),
    waiting_for_tokens   Nullable(UInt32)     CODEC(T64, ZSTD),
    waiting_for_kv       Nullable(UInt32)     CODEC(T64, ZSTD),
    waiting_for_priority Nullable(UInt32)     CODEC(T64, ZSTD),
    cached_tokens     Nullable(UInt32)        CODEC(T64, ZSTD),
    drafted_tokens    Nullable(UInt32)        CODEC(T64, ZSTD),
    retries           Nullable(UInt32)        CODEC(T64, ZSTD),
    graph_rows        Nullable(UInt32)        CODEC(T64, ZSTD),     -- NULL also: no CUDA graph computed the step
    device_ns         Nullable(UInt64)        CODEC(T64, ZSTD),     -- NULL also: the device has no clock of its own
    compute_ns        Nullable(UInt64)        CODEC(T64, ZSTD),
    memory_ns         Nullable(UInt64)        CODEC(T64, ZSTD)
)
ENGINE = MergeTree
PARTITION BY toDate(start)
ORDER BY (service, instance, start)
SETTINGS $durable;

CREATE TABLE IF NOT EXISTS kv_events
(
    start             DateTime64(9, 'UTC')    CODEC(Delta, ZSTD),
    service           LowCardinality(String),
    instance          LowCardinality(String),
    process_tenant    LowCardinality(String),
    variant           LowCardinality(String),
    kind              LowCardinality(String),                   -- evict | offload | restore
    reason            LowCardinality(String),
    blocks            Nullable(UInt32),
    bytes             Nullable(UInt64),                         -- copied between device and host
    duration_ns       UInt64,
    step              Nullable(UInt64),
    trace_id          FixedString(16),                          -- of the request that lost the blocks, if the span has a parent
    request_span_id   String,                                   -- '' when no request lost blocks
    beneficiary       String,                                   -- trace id of the request for which the blocks moved, or ''
    segment           String                  CODEC(ZSTD)
)
ENGINE = MergeTree
PARTITION BY toDate(start)
ORDER BY (start, instance)
SETTINGS $durable;

-- One row per cold start (phase '') and one per sub-phase of it.
CREATE TABLE IF NOT EXISTS cold_starts
(
    start             DateTime64(9, 'UTC')    CODEC(Delta, ZSTD),
    duration_ns       UInt64,
    trace_id          FixedString(16),
    span_id           FixedString(8),
    parent_span_id    String,
    engine            LowCardinality(String),
    service           LowCardinality(String),
    instance          LowCardinality(String),
    process_tenant    LowCardinality(String),
    variant           LowCardinality(String),
    model             LowCardinality(String),
    phase             LowCardinality(String),
    status            LowCardinality(String),                   -- ok | error
    error_type        LowCardinality(String),
    segment           String                  CODEC(ZSTD),
    -- What the engine may do at once, told by the row of the whole start. NULL, '': not told.
    max_seqs          Nullable(UInt32),
    max_batched_tokens Nullable(UInt32),
    block_size        Nullable(UInt32),
    kv_blocks         Nullable(UInt32),
    watermark_blocks  Nullable(UInt32),
    chunked_prefill   Nullable(Bool),
    prefix_caching    Nullable(Bool),
    policy            LowCardinality(String)                    -- fcfs | priority | static | …
)
ENGINE = MergeTree
PARTITION BY toYYYYMM(start)
ORDER BY (start, trace_id)
SETTINGS $durable;

-- The latest announcement of each request. The request's end replaces it, and a merge removes ended requests once their day
-- is one part. So the rows that stay of past days are lost requests.
CREATE TABLE IF NOT EXISTS open_requests
(
    start             DateTime64(9, 'UTC'),
    seen              DateTime64(9, 'UTC'),
    trace_id          FixedString(16),
    span_id           FixedString(8),
    request_id        String,
    engine            LowCardinality(String),
    service           LowCardinality(String),
    instance          LowCardinality(String),
    process_tenant    LowCardinality(String),
    variant           LowCardinality(String),
    vantage           LowCardinality(String)  DEFAULT 'server',
    operation         LowCardinality(String),
    model             LowCardinality(String),
    tenant            LowCardinality(String),
    slo_class         LowCardinality(String),
    labels            Map(LowCardinality(String), LowCardinality(String)) CODEC(ZSTD),
    input_tokens      Nullable(UInt32),
    output_tokens     Nullable(UInt32),
    ttft_ns           Nullable(UInt64),
    last_token_ns     Nullable(UInt64),                         -- arrival to the latest token so far
    gap_ns            Nullable(UInt64),                         -- the longest wait between two tokens of one answer so far
    ended             UInt8,                                    -- 1: it has ended; `seen` is then an hour after its end
    heard             DateTime64(9, 'UTC')    DEFAULT seen,     -- when it was stored; the span's end, if that is more than a day earlier, or up to a minute later
    INDEX by_seen seen TYPE minmax GRANULARITY 1,
    INDEX by_heard heard TYPE minmax GRANULARITY 1
)
ENGINE = ReplacingMergeTree(seen, ended)
PARTITION BY toDate(start)
ORDER BY (start, trace_id, span_id)
SETTINGS $durable,
         min_age_to_force_merge_seconds = 3600, min_age_to_force_merge_on_partition_only = 1,
         allow_experimental_replacing_merge_with_cleanup = 1,
         enable_replacing_merge_with_cleanup_for_min_age_to_force_merge = 1,
         index_granularity = 8192, lightweight_mutation_projection_mode = 'rebuild';

-- Spans without a claim, with all their attributes and events, so that an engine's mapping can be written from them later.
CREATE TABLE IF NOT EXISTS spans
(
    start             DateTime64(9, 'UTC')    CODEC(Delta, ZSTD),
    duration_ns       UInt64,
    trace_id          FixedString(16),
    span_id           FixedString(8),
    parent_span_id    String,
    service           LowCardinality(String),
    instance          LowCardinality(String),
    scope             LowCardinality(String),
    name              LowCardinality(String),
    kind              UInt8,
    status_code       UInt8,
    status_message    String,
    attributes        Map(LowCardinality(String), String),
    resource          Map(LowCardinality(String), String),
    events            Array(Tuple(time DateTime64(9, 'UTC'), name LowCardinality(String), attributes Map(LowCardinality(String), String)))
)
ENGINE = MergeTree
PARTITION BY toDate(start)
ORDER BY (service, name, start)
SETTINGS $durable;
