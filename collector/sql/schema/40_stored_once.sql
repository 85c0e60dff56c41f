-- A span that comes again in another payload makes no second row, for example when an OpenTelemetry Collector batches the spans of an
-- exporter's second attempt together with others. Engines' views write to these Null tables, and rows go on to the stored tables
-- unless their key is there or came twice in this insert. The keys are those by which the stored tables are sorted, so a look-up reads few
-- granules. They have the tenant of the process too: a tenant that knows the ids of another one's request keeps nothing of it out.
-- Tokens that the collector inserts as columns do not come by here (collector/store/new_tokens.py).

CREATE TABLE IF NOT EXISTS new_requests ($request_columns) ENGINE = Null;
CREATE OR REPLACE MATERIALIZED VIEW store_requests TO requests AS
SELECT * FROM new_requests
WHERE (end, trace_id, span_id, process_tenant) NOT IN
(
    SELECT end, trace_id, span_id, process_tenant FROM requests
    WHERE (end, trace_id, span_id) IN (SELECT end, trace_id, span_id FROM new_requests)
)
LIMIT 1 BY end, trace_id, span_id, process_tenant;

CREATE TABLE IF NOT EXISTS new_tokens ($token_columns) ENGINE = Null;
CREATE OR REPLACE MATERIALIZED VIEW store_tokens TO tokens AS
SELECT * FROM new_tokens
WHERE (minute, trace_id, request_span_id, token_index, choice, tenant_hash) NOT IN
(
    SELECT minute, trace_id, request_span_id, token_index, choice, tenant_hash FROM tokens
    WHERE (minute, trace_id, request_span_id, token_index, choice) IN
        (SELECT minute, trace_id, request_span_id, token_index, choice FROM new_tokens)
)
LIMIT 1 BY minute, trace_id, request_span_id, token_index, choice, tenant_hash;
