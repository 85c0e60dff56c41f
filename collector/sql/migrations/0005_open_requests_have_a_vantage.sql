-- Requests in flight are filtered by their vantage too. Until now only servers announced requests.

ALTER TABLE open_requests ADD COLUMN IF NOT EXISTS vantage LowCardinality(String) DEFAULT 'server' AFTER variant;
