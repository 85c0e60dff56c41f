-- Percentiles of the time in the queue are found in a narrow column, as those of other latencies.

ALTER TABLE requests
    ADD COLUMN IF NOT EXISTS queue_us UInt32
        MATERIALIZED if(queue_ns IS NULL, 4294967295, least(intDiv(assumeNotNull(queue_ns) + 999, 1000), 4294967294)) CODEC(NONE)
        AFTER e2e_us;
ALTER TABLE requests MATERIALIZE COLUMN queue_us;
