-- A request with several answers of one token each has no TPOT. It was taken for one whose TPOT is not known. Rows that are stored stay as they are.

ALTER TABLE requests
    ADD COLUMN IF NOT EXISTS choices UInt32 DEFAULT 1 AFTER weight;
ALTER TABLE requests
    MODIFY COLUMN tpot_us UInt32 MATERIALIZED multiIf(
        tpot_ns IS NOT NULL, least(intDiv(toUInt64(least(ceil(ifNull(tpot_ns, 0)), 1e16)) + 999, 1000), 4294967294), output_tokens < 2 OR output_tokens = choices, 0, 4294967295)
        CODEC(NONE);
