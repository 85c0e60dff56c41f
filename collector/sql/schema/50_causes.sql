-- Where the time of each request that ended went: one row, which the explainer (collector/causes/stage) makes soon after the end. What
-- answers filter and judge by is here again, so that they read no other table. `end` and `request_key` name the request in `requests`. A
-- row replaces one of a lower version: read with FINAL.

CREATE TABLE IF NOT EXISTS causes
(
    end               DateTime64(9, 'UTC')    CODEC(Delta, ZSTD),
    request_key       UInt32                  CODEC(NONE),          -- toUInt32() of collector/ask/sql/request_key.sql: of the request's two ids and the tenant of its process
    ingested_at       DateTime64(3, 'UTC')    CODEC(Delta, ZSTD),
    engine            LowCardinality(String)  CODEC(ZSTD),
    service           LowCardinality(String)  CODEC(ZSTD),
    instance          LowCardinality(String)  CODEC(ZSTD),
    process_tenant    LowCardinality(String)  CODEC(ZSTD),
    variant           LowCardinality(String)  CODEC(ZSTD),
    vantage           LowCardinality(String)  CODEC(ZSTD),
    operation         LowCardinality(String)  CODEC(ZSTD),
    model             LowCardinality(String)  CODEC(ZSTD),
    tenant            LowCardinality(String)  CODEC(ZSTD),
    slo_class         LowCardinality(String)  CODEC(ZSTD),
    labels            Map(LowCardinality(String), LowCardinality(String)) CODEC(ZSTD),
    status            LowCardinality(String)  CODEC(ZSTD),
    error_type        LowCardinality(String)  CODEC(ZSTD),
    output_tokens     Nullable(UInt32)        CODEC(T64, ZSTD),
    weight            Float64                 DEFAULT 1 CODEC(ZSTD),
    first_token       Enum8('none' = 0, 'known' = 1, 'unknown' = 2) CODEC(ZSTD), -- 'none': the request ended without one
    tpot_more_us      UInt32                  CODEC(T64, ZSTD),     -- tpot_us - $mean_gap_us, modulo 2^32: 0 when the last token was the end
    tpot_is_bound     Bool                    CODEC(ZSTD),          -- it is not known, and at most this
    gap_us            UInt32                  DEFAULT 4294967295 CODEC(T64, ZSTD), -- this and the next as `requests` has them; 4294967295: not known
    first_visible_us  UInt32                  DEFAULT 4294967295 CODEC(T64, ZSTD),

    -- Whole microseconds of each cause (collector/causes/split/causes.yaml) before the first token, or before the end where none is known.
    -- They add up to ttft_us. More than 71 minutes are cut to that, as in `requests`.
    ttft_cold_start_us    UInt32 CODEC(T64, ZSTD),
    ttft_wait_batch_us    UInt32 CODEC(T64, ZSTD),
    ttft_wait_kv_us       UInt32 CODEC(T64, ZSTD),
    ttft_wait_tokens_us   UInt32 CODEC(T64, ZSTD),
    ttft_wait_priority_us UInt32 CODEC(T64, ZSTD),
    ttft_busy_us          UInt32 CODEC(T64, ZSTD),
    ttft_own_prompt_us    UInt32 CODEC(T64, ZSTD),
    ttft_others_prompts_us UInt32 CODEC(T64, ZSTD),
    ttft_batch_us         UInt32 CODEC(T64, ZSTD),
    ttft_alone_us         UInt32 CODEC(T64, ZSTD),
    ttft_preempted_us     UInt32 CODEC(T64, ZSTD),
    ttft_recompute_us     UInt32 CODEC(T64, ZSTD),
    ttft_kv_transfer_us   UInt32 CODEC(T64, ZSTD),
    ttft_drift_us         UInt32 CODEC(T64, ZSTD),
    ttft_stall_us         UInt32 CODEC(T64, ZSTD),
    ttft_gap_us           UInt32 CODEC(T64, ZSTD),
    ttft_slower_us        UInt32 CODEC(T64, ZSTD),
    ttft_drafts_us        UInt32 CODEC(T64, ZSTD),
    ttft_unexplained_us   UInt32 CODEC(T64, ZSTD),
    -- After the first token. All of them add up to e2e_us.
    rest_cold_start_us    UInt32 CODEC(T64, ZSTD),
    rest_wait_batch_us    UInt32 CODEC(T64, ZSTD),
    rest_wait_kv_us       UInt32 CODEC(T64, ZSTD),
    rest_wait_tokens_us   UInt32 CODEC(T64, ZSTD),
    rest_wait_priority_us UInt32 CODEC(T64, ZSTD),
    rest_busy_us          UInt32 CODEC(T64, ZSTD),
    rest_own_prompt_us    UInt32 CODEC(T64, ZSTD),
    rest_others_prompts_us UInt32 CODEC(T64, ZSTD),
    rest_batch_us         UInt32 CODEC(T64, ZSTD),
    rest_alone_us         UInt32 CODEC(T64, ZSTD),
    rest_preempted_us     UInt32 CODEC(T64, ZSTD),
    rest_recompute_us     UInt32 CODEC(T64, ZSTD),
    rest_kv_transfer_us   UInt32 CODEC(T64, ZSTD),
    rest_drift_us         UInt32 CODEC(T64, ZSTD),
    rest_stall_us         UInt32 CODEC(T64, ZSTD),
    rest_gap_us           UInt32 CODEC(T64, ZSTD),
    rest_slower_us        UInt32 CODEC(T64, ZSTD),
    rest_drafts_us        UInt32 CODEC(T64, ZSTD),
    rest_unexplained_us   UInt32 CODEC(T64, ZSTD),

    inflicted_us      Nullable(UInt32)        CODEC(T64, ZSTD),     -- how long its prompt made others wait, summed over them; 1 % exact; NULL: not known
    error_permille    UInt16                  CODEC(T64, ZSTD),     -- one standard deviation of its parts by the model's, of E2E; 65534 is that or more, 65535 not known
    level             Enum8('none' = 0, 'phases' = 1, 'estimated' = 2, 'steps' = 3) CODEC(ZSTD), -- how far it is explained
    -- Why it is not explained step by step (collector/causes/split/reasons.py), with the number that fell short, and the steps there were.
    reason            Enum8('none' = 0, 'client' = 1, 'failed' = 2, 'no_phases' = 3, 'no_steps' = 4, 'few_steps' = 5,
        'scatter' = 6, 'fit' = 7, 'outliers' = 8, 'steps_missing' = 9, 'steps_late' = 10) CODEC(ZSTD),
    reason_share      Nullable(Float32)       CODEC(ZSTD),
    reason_steps      Nullable(UInt32)        CODEC(T64, ZSTD),
    -- Its process takes `slower_by` times as long for the same work as another variant of its service, as itself earlier, or as a sister.
    slower_than       Enum8('none' = 0, 'version' = 1, 'earlier' = 2, 'sister' = 3) CODEC(ZSTD),
    slower_name       LowCardinality(String)  CODEC(ZSTD),          -- that variant, the begin of that time (RFC 3339), or that instance
    slower_by         Nullable(Float32)       CODEC(ZSTD),
    slower_low        Nullable(Float32)       CODEC(ZSTD),          -- 95 of 100 times it lies between this and the next
    slower_high       Nullable(Float32)       CODEC(ZSTD),
    model_at          DateTime('UTC')         CODEC(Delta, ZSTD),   -- `at` of the row of step_models that judged its steps; 1970: none
    version           UInt32                  CODEC(Delta, ZSTD),

    -- The latencies as `requests` has them: whole microseconds, rounded up, with the same two values that are no time.
    ttft_us           UInt32 ALIAS multiIf(first_token = 'none', 0, first_token = 'unknown', 4294967295,
        toUInt32(greatest(least($sum_of_ttft, 4294967294), 1))),
    tpot_us           UInt32 ALIAS toUInt32($mean_gap_us + tpot_more_us),
    error_us          Nullable(UInt64) ALIAS if(error_permille = 65535, NULL, intDiv(toUInt64(e2e_us) * error_permille + 500, 1000)),
    e2e_us            UInt32 ALIAS toUInt32(least($sum_of_ttft + $sum_of_rest, 4294967294)),
    ttft_ns           Nullable(UInt64) ALIAS if(first_token = 'known', toUInt64(ttft_us) * 1000, NULL),
    e2e_ns            UInt64 ALIAS toUInt64(e2e_us) * 1000,
    tpot_ns           Nullable(UInt64) ALIAS if(tpot_us IN (0, 4294967295) OR tpot_is_bound, NULL, toUInt64(tpot_us) * 1000),
    tpot_at_most_ns   Nullable(UInt64) ALIAS if(tpot_is_bound, toUInt64(tpot_us) * 1000, NULL),
    gap_ns            Nullable(UInt64) ALIAS if(gap_us = 4294967295, NULL, toUInt64(gap_us) * 1000),
    first_visible_ns  Nullable(UInt64) ALIAS if(first_visible_us IN (0, 4294967295), NULL, toUInt64(first_visible_us) * 1000)
)
ENGINE = ReplacingMergeTree(version)
PARTITION BY toDate(end)
ORDER BY (end, request_key)
SETTINGS $durable,
         index_granularity = 8192, lightweight_mutation_projection_mode = 'rebuild';

-- How long the steps of an engine process take, as a law of their work (collector/causes): one row a process and ten minutes of its steps.
CREATE TABLE IF NOT EXISTS step_models
(
    at                DateTime('UTC')         CODEC(Delta, ZSTD),   -- the begin of the ten minutes
    service           LowCardinality(String),
    instance          LowCardinality(String),
    process_tenant    LowCardinality(String),
    variant           LowCardinality(String),
    model             LowCardinality(String),                       -- of most of its requests
    start_ns          Int64                   CODEC(Delta, ZSTD),   -- of the first step that it knows
    end_ns            Int64                   CODEC(Delta, ZSTD),   -- of the last one
    n                 Float64                 CODEC(ZSTD),          -- steps that it knows; older ones count less
    sigma             Float64                 CODEC(ZSTD),          -- scatter of a step's duration around the law, as a share
    r2                Float64                 CODEC(ZSTD),
    coefficients      Array(Float64)          CODEC(ZSTD),          -- ns, by FEATURES of collector/causes/split/model.py
    xtx               Array(Float64)          CODEC(ZSTD),          -- weighted sums of products, from which the next row goes on
    xty               Array(Float64)          CODEC(ZSTD),
    cells             Map(UInt16, Float64)    CODEC(ZSTD),          -- calibration by amount of work
    cell_steps        Map(UInt16, Float64)    CODEC(ZSTD),
    most              Array(Float64)          CODEC(ZSTD),          -- of each feature in one step: beyond, the law was not seen to hold
    anchor            Array(Float64)          CODEC(ZSTD),          -- the fastest coefficients that it had, of a week
    anchor_ns         Int64                   CODEC(Delta, ZSTD),   -- when it had them
    tokens_a_step     Float64                 CODEC(ZSTD),          -- of a decoding sequence: more than 1 where drafts are accepted
    gap_ns            Float64                 CODEC(ZSTD),          -- the longest ordinary gap between two steps
    refused           UInt32                  CODEC(ZSTD),          -- rows in a row that learned nothing, because most steps differed
    version           UInt32                  CODEC(ZSTD)
)
ENGINE = ReplacingMergeTree(version)
PARTITION BY toDate(at)
ORDER BY (service, instance, process_tenant, at)
SETTINGS $durable;

-- The segments whose requests are explained.
CREATE TABLE IF NOT EXISTS explained_segments
(
    segment           String                  CODEC(ZSTD),
    refused           String                  CODEC(ZSTD),          -- why the store or the algorithm did not take them; empty: it did
    explained_at      DateTime('UTC') DEFAULT now() CODEC(Delta, ZSTD)
)
ENGINE = MergeTree
PARTITION BY toDate(explained_at)
ORDER BY explained_at
TTL explained_at + INTERVAL 2 DAY
SETTINGS $durable, ttl_only_drop_parts = 1;
