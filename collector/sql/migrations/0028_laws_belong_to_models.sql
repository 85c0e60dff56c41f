-- The law of a process's steps names the model that it serves, keeps the range of each feature, and the fastest law that it had. Requests say
-- what their process is slower than, and have two causes more. Laws that are stored are of an older version, and judge nothing any more.

ALTER TABLE step_models
    ADD COLUMN IF NOT EXISTS model LowCardinality(String) AFTER variant,
    DROP COLUMN IF EXISTS most_prompt_tokens,
    DROP COLUMN IF EXISTS most_sequences,
    ADD COLUMN IF NOT EXISTS most Array(Float64) CODEC(ZSTD) AFTER cell_steps,
    ADD COLUMN IF NOT EXISTS anchor Array(Float64) CODEC(ZSTD) AFTER most,
    ADD COLUMN IF NOT EXISTS anchor_ns Int64 CODEC(Delta, ZSTD) AFTER anchor,
    ADD COLUMN IF NOT EXISTS tokens_a_step Float64 CODEC(ZSTD) AFTER anchor_ns;
ALTER TABLE causes
    ADD COLUMN IF NOT EXISTS ttft_slower_us UInt32 CODEC(T64, ZSTD) AFTER ttft_gap_us,
    ADD COLUMN IF NOT EXISTS ttft_drafts_us UInt32 CODEC(T64, ZSTD) AFTER ttft_slower_us,
    ADD COLUMN IF NOT EXISTS rest_slower_us UInt32 CODEC(T64, ZSTD) AFTER rest_gap_us,
    ADD COLUMN IF NOT EXISTS rest_drafts_us UInt32 CODEC(T64, ZSTD) AFTER rest_slower_us,
    ADD COLUMN IF NOT EXISTS slower_than Enum8('none' = 0, 'version' = 1, 'earlier' = 2, 'sister' = 3) CODEC(ZSTD) AFTER reason_steps,
    ADD COLUMN IF NOT EXISTS slower_name LowCardinality(String) CODEC(ZSTD) AFTER slower_than,
    ADD COLUMN IF NOT EXISTS slower_by Nullable(Float32) CODEC(ZSTD) AFTER slower_name,
    ADD COLUMN IF NOT EXISTS slower_low Nullable(Float32) CODEC(ZSTD) AFTER slower_by,
    ADD COLUMN IF NOT EXISTS slower_high Nullable(Float32) CODEC(ZSTD) AFTER slower_low;
