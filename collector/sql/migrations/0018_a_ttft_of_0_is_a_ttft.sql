-- A reported TTFT of 0 was read as that of a request without a token. Rows that are stored stay as they are.

ALTER TABLE requests
    MODIFY COLUMN ttft_us UInt32 MATERIALIZED multiIf(
        ttft_ns IS NOT NULL, greatest(least(intDiv(assumeNotNull(ttft_ns) + 999, 1000), 4294967294), 1), output_tokens = 0, 0, 4294967295)
        CODEC(NONE);
