-- Silence begins when an announcement was stored, since the clock of its sender may be wrong. Rows that are stored keep the time of their sender.

ALTER TABLE open_requests
    ADD COLUMN IF NOT EXISTS heard DateTime64(9, 'UTC') DEFAULT seen AFTER ended;
ALTER TABLE open_requests
    ADD INDEX IF NOT EXISTS by_heard heard TYPE minmax GRANULARITY 1;
