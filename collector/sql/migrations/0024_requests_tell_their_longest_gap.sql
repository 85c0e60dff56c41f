-- SLOs may promise the longest wait between two tokens, and the time to the first visible token. Rows that are stored have no gap: nobody
-- told it, and their tokens are not read again. Their causes know neither.

ALTER TABLE requests
    ADD COLUMN IF NOT EXISTS gap_ns Nullable(UInt64) AFTER choices,
    ADD COLUMN IF NOT EXISTS gap_index Nullable(UInt32) AFTER gap_ns;
ALTER TABLE requests
    ADD COLUMN IF NOT EXISTS gap_us UInt32 MATERIALIZED multiIf(
        gap_ns IS NOT NULL, least(intDiv(assumeNotNull(gap_ns) + 999, 1000), 4294967294), output_tokens < 2 OR output_tokens = choices, 0, 4294967295)
        CODEC(NONE) AFTER is_sampled;
ALTER TABLE requests
    ADD COLUMN IF NOT EXISTS first_visible_us UInt32 MATERIALIZED multiIf(
        first_visible_ns IS NOT NULL, greatest(least(intDiv(assumeNotNull(first_visible_ns) + 999, 1000), 4294967294), 1),
        reasoning_tokens = 0 OR output_tokens = 0, ttft_us, 4294967295)
        CODEC(NONE) AFTER gap_us;
ALTER TABLE open_requests
    ADD COLUMN IF NOT EXISTS last_token_ns Nullable(UInt64) AFTER ttft_ns,
    ADD COLUMN IF NOT EXISTS gap_ns Nullable(UInt64) AFTER last_token_ns;
ALTER TABLE causes
    ADD COLUMN IF NOT EXISTS gap_us UInt32 DEFAULT 4294967295 CODEC(T64, ZSTD) AFTER tpot_is_bound,
    ADD COLUMN IF NOT EXISTS first_visible_us UInt32 DEFAULT 4294967295 CODEC(T64, ZSTD) AFTER gap_us;
ALTER TABLE causes
    ADD COLUMN IF NOT EXISTS gap_ns Nullable(UInt64) ALIAS if(gap_us = 4294967295, NULL, toUInt64(gap_us) * 1000) AFTER tpot_at_most_ns;
ALTER TABLE causes
    ADD COLUMN IF NOT EXISTS first_visible_ns Nullable(UInt64) ALIAS if(first_visible_us IN (0, 4294967295), NULL, toUInt64(first_visible_us) * 1000) AFTER gap_ns;
