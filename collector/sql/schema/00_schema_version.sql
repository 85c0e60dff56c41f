-- One row per migration whose effect is in this store. The highest version is the store's. A new store has every row from
-- the start. Version 2, the last one before there were migrations, has neither a name nor a digest.

CREATE TABLE IF NOT EXISTS schema_version
(
    version     UInt32,
    name        String,
    digest      String,                     -- of the migration's statements
    applied_at  DateTime64(3, 'UTC')
)
ENGINE = MergeTree
ORDER BY version
SETTINGS fsync_after_insert = 1, min_rows_to_fsync_after_merge = 1;
