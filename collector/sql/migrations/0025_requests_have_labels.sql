-- Requests carry labels that their senders chose. Rows that are stored have none: nobody kept them.
ALTER TABLE requests ADD COLUMN IF NOT EXISTS labels Map(LowCardinality(String), LowCardinality(String)) CODEC(ZSTD) AFTER slo_class;
ALTER TABLE new_requests ADD COLUMN IF NOT EXISTS labels Map(LowCardinality(String), LowCardinality(String)) CODEC(ZSTD) AFTER slo_class;
ALTER TABLE causes ADD COLUMN IF NOT EXISTS labels Map(LowCardinality(String), LowCardinality(String)) CODEC(ZSTD) AFTER slo_class;
ALTER TABLE open_requests ADD COLUMN IF NOT EXISTS labels Map(LowCardinality(String), LowCardinality(String)) CODEC(ZSTD) AFTER slo_class;
