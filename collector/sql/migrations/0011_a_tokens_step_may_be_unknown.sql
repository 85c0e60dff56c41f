-- A token whose span names no step has NULL, not the engine's first step. Rows that are stored keep their zeros.

ALTER TABLE tokens MODIFY COLUMN step Nullable(UInt64) CODEC(Delta, ZSTD);
