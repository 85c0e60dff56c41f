-- A sampled request says how many it stands for, and aggregate queries get narrow columns.

ALTER TABLE requests
    MODIFY COLUMN input_tokens Nullable(UInt32) CODEC(NONE),
    MODIFY COLUMN output_tokens Nullable(UInt32) CODEC(NONE),
    ADD COLUMN IF NOT EXISTS weight Float64 DEFAULT 1,
    ADD COLUMN IF NOT EXISTS ttft_us UInt32
        MATERIALIZED multiIf(ttft_ns IS NOT NULL, least(intDiv(assumeNotNull(ttft_ns) + 999, 1000), 4294967294), output_tokens = 0, 0, 4294967295) CODEC(NONE),
    ADD COLUMN IF NOT EXISTS tpot_us UInt32
        MATERIALIZED multiIf(tpot_ns IS NOT NULL, least(intDiv(toUInt64(least(ceil(ifNull(tpot_ns, 0)), 1e16)) + 999, 1000), 4294967294), output_tokens < 2, 0, 4294967295) CODEC(NONE),
    ADD COLUMN IF NOT EXISTS e2e_us UInt32 MATERIALIZED least(intDiv(e2e_ns + 999, 1000), 4294967294) CODEC(NONE),
    ADD COLUMN IF NOT EXISTS is_sampled Bool MATERIALIZED weight != 1,
    ADD COLUMN IF NOT EXISTS surface_cell UInt16 MATERIALIZED
        32 * if(ttft_us = 4294967295, 31, length(arrayFilter(us -> ttft_us > us,
            [10000, 20000, 30000, 50000, 70000, 100000, 150000, 200000, 300000, 500000, 700000, 1000000, 1500000, 2000000, 3000000,
             5000000, 7000000, 10000000, 20000000, 60000000])))
        + if(tpot_us = 4294967295, 31, length(arrayFilter(us -> tpot_us > us,
            [1000, 2000, 3000, 5000, 7000, 10000, 15000, 20000, 30000, 40000, 50000, 60000, 70000, 80000, 100000, 150000, 200000,
             300000, 500000, 1000000])));
ALTER TABLE requests MATERIALIZE COLUMN ttft_us, MATERIALIZE COLUMN tpot_us, MATERIALIZE COLUMN e2e_us,
    MATERIALIZE COLUMN is_sampled, MATERIALIZE COLUMN surface_cell;
