-- A process is told apart by the tenant of the key that reported it, too. Rows that are stored belong to processes of all tenants: nobody kept
-- whose key it was.

ALTER TABLE requests ADD COLUMN IF NOT EXISTS process_tenant LowCardinality(String) AFTER instance;
ALTER TABLE new_requests ADD COLUMN IF NOT EXISTS process_tenant LowCardinality(String) AFTER instance;
ALTER TABLE steps ADD COLUMN IF NOT EXISTS process_tenant LowCardinality(String) AFTER instance;
ALTER TABLE kv_events ADD COLUMN IF NOT EXISTS process_tenant LowCardinality(String) AFTER instance;
ALTER TABLE cold_starts ADD COLUMN IF NOT EXISTS process_tenant LowCardinality(String) AFTER instance;
ALTER TABLE open_requests ADD COLUMN IF NOT EXISTS process_tenant LowCardinality(String) AFTER instance;
ALTER TABLE samples ADD COLUMN IF NOT EXISTS process_tenant LowCardinality(String) AFTER instance;
