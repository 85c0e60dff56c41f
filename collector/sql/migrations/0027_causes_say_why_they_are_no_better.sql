-- A row of causes says why its request is not explained step by step. Rows that are stored have 'failed' where that is so: nobody kept why.
-- What a prompt inflicted on others is NULL where it is not known, so that no sum adds up a number that stands for it.

ALTER TABLE causes
    ADD COLUMN IF NOT EXISTS reason Enum8('none' = 0, 'client' = 1, 'failed' = 2, 'no_phases' = 3, 'no_steps' = 4, 'few_steps' = 5,
        'scatter' = 6, 'fit' = 7, 'outliers' = 8, 'steps_missing' = 9, 'steps_late' = 10) CODEC(ZSTD) AFTER level,
    ADD COLUMN IF NOT EXISTS reason_share Nullable(Float32) CODEC(ZSTD) AFTER reason,
    ADD COLUMN IF NOT EXISTS reason_steps Nullable(UInt32) CODEC(T64, ZSTD) AFTER reason_share,
    MODIFY COLUMN inflicted_us Nullable(UInt32) CODEC(T64, ZSTD);
ALTER TABLE causes UPDATE inflicted_us = NULL WHERE inflicted_us = 4294967295;
ALTER TABLE causes UPDATE reason = 'failed' WHERE level != 'steps' AND reason = 'none';
