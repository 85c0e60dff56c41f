-- From version 3 on, a store says which migration files it has had, and when.

ALTER TABLE schema_version
    ADD COLUMN IF NOT EXISTS name String,
    ADD COLUMN IF NOT EXISTS digest String,
    ADD COLUMN IF NOT EXISTS applied_at DateTime64(3, 'UTC');
