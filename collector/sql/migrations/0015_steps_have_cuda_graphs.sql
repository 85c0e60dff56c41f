-- A step says which CUDA graph computed it. Rows that are stored have NULL: nobody said it.

ALTER TABLE steps ADD COLUMN IF NOT EXISTS graph_rows Nullable(UInt32) CODEC(T64, ZSTD) AFTER retries;
