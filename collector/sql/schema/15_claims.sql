-- Which segment stores a payload, when several collectors insert into this store (collector/store/claims.py). A claim is one
-- insert: a number, and the digests of a segment's payloads. The numbers grow by one and order the claims.

CREATE TABLE IF NOT EXISTS payload_claims
(
    claim       UInt64                        CODEC(Delta, ZSTD),
    signal      LowCardinality(String),
    prefix      UInt64                        CODEC(NONE),          -- the first 8 bytes of the digest, little endian
    digest      FixedString(16)               CODEC(NONE),
    segment     String                        CODEC(ZSTD),
    withdrawn   UInt8,                                              -- 1: the segment has not stored it, it is a dead letter
    claimed_at  DateTime('UTC') DEFAULT now() CODEC(Delta, ZSTD)
)
ENGINE = MergeTree
PARTITION BY intDiv(claim, 65536)
ORDER BY prefix
SETTINGS index_granularity = 256, min_compress_block_size = 4096,
         $durable;

-- Which collector counts a request before it ends, when several collectors share this store (collector/store/early_claims.py). A
-- claim is one insert: requests in flight, and segments whose ended requests its collector counts next.
CREATE TABLE IF NOT EXISTS early_claims
(
    claim       UInt64                        CODEC(Delta, ZSTD),
    collector   String                        CODEC(ZSTD),
    segment     String                        CODEC(ZSTD),          -- '' in the row of a request
    key         String                        CODEC(ZSTD),          -- ids of trace and span in hex, and the tenant of its process; '' in the row of a segment
    slo         LowCardinality(String),                             -- '': the request is counted as lost
    tenant      LowCardinality(String),
    is_late     UInt8,                                              -- 1: past a threshold. 0: nothing is heard of it
    process     Array(String),
    at_ns       Int64                         CODEC(ZSTD),          -- when it was given up
    claimed_at  DateTime('UTC') DEFAULT now() CODEC(Delta, ZSTD)
)
ENGINE = MergeTree
PARTITION BY intDiv(claim, 65536)
ORDER BY claim
SETTINGS index_granularity = 256, $durable;
