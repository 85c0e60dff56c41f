-- A step says how long its arithmetic and its reads take at the device's peaks; a request says how sure its model was. Rows that
-- are stored have NULL: nobody measured it.

ALTER TABLE requests
    ADD COLUMN IF NOT EXISTS perplexity Nullable(Float64) AFTER accepted_tokens,
    ADD COLUMN IF NOT EXISTS mean_entropy Nullable(Float64) AFTER perplexity;
ALTER TABLE steps
    ADD COLUMN IF NOT EXISTS compute_ns Nullable(UInt64) CODEC(T64, ZSTD),
    ADD COLUMN IF NOT EXISTS memory_ns Nullable(UInt64) CODEC(T64, ZSTD);
