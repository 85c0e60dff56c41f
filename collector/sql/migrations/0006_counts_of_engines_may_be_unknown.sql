-- A count of a step or of a KV-cache event that is not one (negative, a fraction, above 2^32) or that is absent is NULL, not 0.
-- Rows that are stored keep their zeros: tokentrail's SDK sends every count.

ALTER TABLE steps
    MODIFY COLUMN step Nullable(UInt64) CODEC(Delta, ZSTD),
    MODIFY COLUMN prefill_tokens Nullable(UInt32) CODEC(T64, ZSTD),
    MODIFY COLUMN decode_tokens Nullable(UInt32) CODEC(T64, ZSTD),
    MODIFY COLUMN running Nullable(UInt32) CODEC(T64, ZSTD),
    MODIFY COLUMN waiting Nullable(UInt32) CODEC(T64, ZSTD),
    MODIFY COLUMN preempted Nullable(UInt32) CODEC(T64, ZSTD),
    MODIFY COLUMN kv_blocks_used Nullable(UInt32) CODEC(T64, ZSTD),
    MODIFY COLUMN kv_blocks_total Nullable(UInt32) CODEC(T64, ZSTD),
    MODIFY COLUMN kv_blocks_evicted Nullable(UInt32) CODEC(T64, ZSTD);
ALTER TABLE kv_events
    MODIFY COLUMN blocks Nullable(UInt32),
    MODIFY COLUMN step Nullable(UInt64);
