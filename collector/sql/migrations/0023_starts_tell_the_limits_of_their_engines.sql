-- What an engine may do at once, told once a start (tokentrail.semconv.Limit). Starts from before have told nothing.
ALTER TABLE cold_starts ADD COLUMN IF NOT EXISTS max_seqs Nullable(UInt32) AFTER segment;
ALTER TABLE cold_starts ADD COLUMN IF NOT EXISTS max_batched_tokens Nullable(UInt32) AFTER max_seqs;
ALTER TABLE cold_starts ADD COLUMN IF NOT EXISTS block_size Nullable(UInt32) AFTER max_batched_tokens;
ALTER TABLE cold_starts ADD COLUMN IF NOT EXISTS kv_blocks Nullable(UInt32) AFTER block_size;
ALTER TABLE cold_starts ADD COLUMN IF NOT EXISTS watermark_blocks Nullable(UInt32) AFTER kv_blocks;
ALTER TABLE cold_starts ADD COLUMN IF NOT EXISTS chunked_prefill Nullable(Bool) AFTER watermark_blocks;
ALTER TABLE cold_starts ADD COLUMN IF NOT EXISTS prefix_caching Nullable(Bool) AFTER chunked_prefill;
ALTER TABLE cold_starts ADD COLUMN IF NOT EXISTS policy LowCardinality(String) AFTER prefix_caching;
