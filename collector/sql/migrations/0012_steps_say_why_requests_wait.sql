-- A step says what the waiting requests lacked, what it saved, and how long the device worked; a request says how long it waited for
-- what; a KV event says whom it served. Rows that are stored have NULL: nobody kept these numbers.

ALTER TABLE requests
    ADD COLUMN IF NOT EXISTS drafted_tokens Nullable(UInt32) AFTER reasoning_tokens,
    ADD COLUMN IF NOT EXISTS accepted_tokens Nullable(UInt32) AFTER drafted_tokens,
    ADD COLUMN IF NOT EXISTS first_visible_ns Nullable(UInt64) AFTER stalled_ns,
    ADD COLUMN IF NOT EXISTS wait_batch_ns Nullable(UInt64) AFTER first_visible_ns,
    ADD COLUMN IF NOT EXISTS wait_tokens_ns Nullable(UInt64) AFTER wait_batch_ns,
    ADD COLUMN IF NOT EXISTS wait_kv_ns Nullable(UInt64) AFTER wait_tokens_ns,
    ADD COLUMN IF NOT EXISTS wait_priority_ns Nullable(UInt64) AFTER wait_kv_ns;
ALTER TABLE steps
    ADD COLUMN IF NOT EXISTS waiting_for_batch Nullable(UInt32) CODEC(T64, ZSTD),
    ADD COLUMN IF NOT EXISTS waiting_for_tokens Nullable(UInt32) CODEC(T64, ZSTD),
    ADD COLUMN IF NOT EXISTS waiting_for_kv Nullable(UInt32) CODEC(T64, ZSTD),
    ADD COLUMN IF NOT EXISTS waiting_for_priority Nullable(UInt32) CODEC(T64, ZSTD),
    ADD COLUMN IF NOT EXISTS cached_tokens Nullable(UInt32) CODEC(T64, ZSTD),
    ADD COLUMN IF NOT EXISTS drafted_tokens Nullable(UInt32) CODEC(T64, ZSTD),
    ADD COLUMN IF NOT EXISTS retries Nullable(UInt32) CODEC(T64, ZSTD),
    ADD COLUMN IF NOT EXISTS device_ns Nullable(UInt64) CODEC(T64, ZSTD);
ALTER TABLE kv_events
    ADD COLUMN IF NOT EXISTS bytes Nullable(UInt64) AFTER blocks,
    ADD COLUMN IF NOT EXISTS beneficiary String AFTER request_span_id;
