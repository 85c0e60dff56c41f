-- ITL of many tokens compares one number in place of two ids (schema/10_tables.sql). Rows from before have no such column on disk: it
-- is computed when they are read, so a migration does not rewrite them.
ALTER TABLE tokens ADD COLUMN IF NOT EXISTS request_key UInt64 MATERIALIZED if(token_index = 0, 0, cityHash64(trace_id, request_span_id)) CODEC(ZSTD) AFTER step;
