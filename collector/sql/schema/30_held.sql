-- Some engines divide a request among spans of several processes, which arrive in several payloads. Such spans have a claim like
-- `sglang.held.token` and wait here for the rest of their request. `collector/store/joiner.py` then inserts each request with its parts into `joins`, and the
-- engine's views make rows of it. A span waits for a day at most: one that comes after its request was joined is not used.

-- The spans and log records that become requests. Those of one segment are joined together, once.
CREATE TABLE IF NOT EXISTS held_requests
(
    $held_columns,
    link              FixedString(16),                          -- the trace id of its parts in another trace; zeros: it has none
    is_log            UInt8,                                    -- 1: a log record, which is used as a part if a span comes too
    segment           String                  CODEC(ZSTD),
    arrived           DateTime('UTC')         CODEC(Delta, ZSTD),
    INDEX by_link link TYPE bloom_filter GRANULARITY 1
)
ENGINE = MergeTree
PARTITION BY toDate(arrived)
ORDER BY (arrived, segment)
TTL arrived + INTERVAL 1 DAY
SETTINGS $durable, ttl_only_drop_parts = 1;

-- The parts: descendants of a request's span, or log records that a request names by its link. A request whose parent is a request
-- of the same engine (a proxy's) is a part of it, so requests are here too.
CREATE TABLE IF NOT EXISTS held_spans
(
    $held_columns,
    is_leaf           UInt8,                                    -- 1: it has no children. Most parts have none
    arrived           DateTime('UTC')         CODEC(Delta, ZSTD)
)
ENGINE = MergeTree
PARTITION BY toDate(arrived)
ORDER BY (trace_id, span_id)
TTL arrived + INTERVAL 1 DAY
SETTINGS $durable, ttl_only_drop_parts = 1;

-- The segments whose requests are joined.
CREATE TABLE IF NOT EXISTS joined_segments
(
    segment           String                  CODEC(ZSTD),
    links             Array(Tuple(link FixedString(16), tenant String)) CODEC(ZSTD), -- of its log records that became requests without a span
    refused           String                  CODEC(ZSTD),      -- why the store refused them; empty: it has them
    joined_at         DateTime('UTC') DEFAULT now() CODEC(Delta, ZSTD)
)
ENGINE = MergeTree
PARTITION BY toDate(joined_at)
ORDER BY joined_at
TTL joined_at + INTERVAL 2 DAY
SETTINGS $durable, ttl_only_drop_parts = 1;

-- A request with its parts, in the order of their starts: `joins` (00_landing.sql), which a cluster exchanges by trace.
CREATE TABLE IF NOT EXISTS joined_spans
(
    $held_columns,
    parts             $held_parts
)
ENGINE = Null;
CREATE OR REPLACE MATERIALIZED VIEW route_joins TO joined_spans AS SELECT * FROM joins;

CREATE TABLE IF NOT EXISTS spans_to_hold AS flat_spans ENGINE = Null;
CREATE OR REPLACE MATERIALIZED VIEW route_held TO spans_to_hold AS SELECT * FROM rare_spans WHERE claim LIKE '%.held.%';

CREATE OR REPLACE MATERIALIZED VIEW hold_requests TO held_requests AS
SELECT
    $held_span,
    if(claim = 'dynamo.held.request', $uuid, toFixedString('', 16)) AS link,
    0 AS is_log,
    getSetting('insert_deduplication_token') AS segment,
    now('UTC') AS arrived
FROM spans_to_hold
WHERE endsWith(claim, '.request');

CREATE OR REPLACE MATERIALIZED VIEW hold_spans TO held_spans AS
SELECT
    $held_span,
    endsWith(claim, '.token') AS is_leaf,
    now('UTC') AS arrived
FROM spans_to_hold;
