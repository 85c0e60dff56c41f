-- A proxy that is not told the number of tokens knows how many chunks brought them, and so a TPOT that the request cannot have
-- exceeded. Rows that are stored have none.

ALTER TABLE requests
    ADD COLUMN IF NOT EXISTS tpot_at_most_ns Nullable(Float64) AFTER tpot_ns;
ALTER TABLE requests
    MODIFY COLUMN tpot_us UInt32 MATERIALIZED multiIf(
        tpot_ns IS NULL AND tpot_at_most_ns IS NULL, if(output_tokens < 2 OR output_tokens = choices, 0, 4294967295),
        least(intDiv(toUInt64(least(ceil(ifNull(tpot_ns, ifNull(tpot_at_most_ns, 0))), 1e16)) + 999, 1000), 4294967294))
        CODEC(NONE);
ALTER TABLE requests
    MODIFY COLUMN surface_cell UInt16 MATERIALIZED
        32 * if(ttft_us = 4294967295, 31, length(arrayFilter(us -> ttft_us > us,
            [10000, 20000, 30000, 50000, 70000, 100000, 150000, 200000, 300000, 500000, 700000, 1000000, 1500000, 2000000, 3000000,
             5000000, 7000000, 10000000, 20000000, 60000000])))
        + if(tpot_us = 4294967295, 31, length(arrayFilter(us -> tpot_us > us,
            [1000, 2000, 3000, 5000, 7000, 10000, 15000, 20000, 30000, 40000, 50000, 60000, 70000, 80000, 100000, 150000, 200000,
             300000, 500000, 1000000])))
        + 1024 * (tpot_at_most_ns IS NOT NULL);
