-- The columns of a token that views fill.
minute            DateTime('UTC')         CODEC(Delta, ZSTD),   -- of its emission
trace_id          FixedString(16)         CODEC(ZSTD),
request_span_id   FixedString(8)          CODEC(ZSTD),
tenant_hash       UInt64                  CODEC(Delta, ZSTD),   -- of the process's tenant (parts/tenant_hash.sql); 0 costs no bytes
choice            UInt16                  CODEC(T64, ZSTD),     -- of a request with several answers (n > 1); 0 costs no bytes
token_index       UInt32                  CODEC(Delta, ZSTD),   -- within its choice
duration_us       UInt64                  CODEC(T64, ZSTD),     -- index 0: TTFT, others: ITL
step              Nullable(UInt64)        CODEC(Delta, ZSTD)   -- NULL: the sender named none
