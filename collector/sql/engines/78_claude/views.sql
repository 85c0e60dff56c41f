-- Claude Code (from public recordings of its spans). It has names of its own, and counts tokens as Anthropic does: those that a cache held or
-- took are beside the input tokens. A call with several attempts is one span.

CREATE TABLE IF NOT EXISTS claude_spans AS flat_spans ENGINE = Null;
CREATE OR REPLACE MATERIALIZED VIEW claude_route TO claude_spans AS SELECT * FROM rare_spans WHERE claim = 'claude.request';

CREATE OR REPLACE MATERIALIZED VIEW claude_requests TO new_requests AS
WITH
    $nanoseconds AS nanoseconds,
    $reported AS reported,
    $counted AS counted,
    $gave_up AS gave_up,
    $end_of AS end_of,
    $status_of_end AS status_of_end,
    $error_of_end AS error_of_end,
    counted('input_tokens') + ifNull(counted('cache_read_tokens'), 0) + ifNull(counted('cache_creation_tokens'), 0) AS input,
    counted('output_tokens') AS n,
    left(text['stop_reason'], 64) AS reason,
    end_of(reason) AS ended,
    multiIf(text['error.type'] != '', text['error.type'], number['status_code'] >= 400, toString(toUInt16(least(number['status_code'], 999))), $exception_in_events) AS exception,
    text['error'] AS message,
    match(message, '(?i)abort|cancel') OR gave_up(exception) AS is_cancelled,
    status_code = 2 OR message != '' OR exception != '' OR mapContains(number, 'success') AND number['success'] = 0 AS failed,
    nanoseconds(reported('ttft_ms') / 1e3, duration_ns) AS first_ns,
    NULL AS stream                                              -- not told
SELECT
    end, start, trace_id, span_id, parent_span_id,
    text['gen_ai.response.id'] AS request_id,
    'claude_code' AS engine,
    service, instance, $process_tenant AS process_tenant, variant,
    'client' AS vantage,
    'chat' AS operation,
    if(text['gen_ai.request.model'] != '', text['gen_ai.request.model'], text['model']) AS model,
    $tenant AS tenant,
    text['tokentrail.slo_class'] AS slo_class,
    $genai_labels AS labels,
    status_of_end(is_cancelled, failed, ended, false) AS status,
    error_of_end(is_cancelled, exception, ended, reason) AS error_type,
    reason AS finish_reason,
    accurateCastOrNull(input, 'UInt32') AS input_tokens,
    n AS output_tokens,
    counted('cache_read_tokens') AS cached_tokens,
    first_ns AS ttft_ns,
    duration_ns AS e2e_ns,
    getSetting('insert_deduplication_token') AS segment,
    now64(3, 'UTC') AS ingested_at,
    $weight AS weight
FROM claude_spans;
