-- text-generation-inference (from its source). Its router writes durations as Rust prints them: '1.2s', '15.3ms', '740µs', '90ns'.
-- It has no TTFT. Only a request to /generate is known to be answered at once, so that its first token arrives with its last.

CREATE TABLE IF NOT EXISTS tgi_spans AS flat_spans ENGINE = Null;
CREATE OR REPLACE MATERIALIZED VIEW tgi_route TO tgi_spans AS SELECT * FROM rare_spans WHERE claim = 'tgi.request';

CREATE OR REPLACE MATERIALIZED VIEW tgi_requests TO new_requests AS
WITH
    $nanoseconds AS nanoseconds,
    (key -> toFloat64OrNull(extract(text[key], '^([0-9]+(?:[.][0-9]+)?)(?:ns|µs|ms|s)$$')) * transform(
        extract(text[key], '(ns|µs|ms|s)$$'), ['ns', 'µs', 'ms', 's'], [1e-9, 1e-6, 1e-3, 1.], nan)) AS seconds,
    ifNull(nanoseconds(seconds('total_time'), $longest_e2e), duration_ns) AS e2e,
    -- The router divides the inference time by the tokens, to the nanosecond below.
    nanoseconds(seconds('time_per_token'), e2e) AS per_token,
    accurateCastOrNull(if(per_token >= 1e4, round(nanoseconds(seconds('inference_time'), e2e) / per_token), nan), 'UInt32') AS n,
    nanoseconds(seconds('validation_time') + seconds('queue_time'), e2e) AS waited
SELECT
    start + toIntervalNanosecond(e2e) AS end,
    start, trace_id, span_id, parent_span_id,
    'tgi' AS engine,
    service, instance, $process_tenant AS process_tenant, variant,
    'server' AS vantage,
    multiIf(startsWith(name, 'chat'), 'chat', startsWith(name, 'completions') OR startsWith(name, 'generate'), 'text_completion', '') AS operation,
    if(startsWith(service, 'unknown_service'), '', service) AS model,
    $tenant AS tenant,
    text['tokentrail.slo_class'] AS slo_class,
    $labels AS labels,
    if(status_code = 2, 'error', 'ok') AS status,
    $exception_in_status AS error_type,
    n AS output_tokens,
    if(name = 'generate' AND n > 0, e2e, NULL) AS ttft_ns,
    e2e AS e2e_ns,
    waited AS queue_ns,
    getSetting('insert_deduplication_token') AS segment,
    now64(3, 'UTC') AS ingested_at,
    $weight AS weight
FROM tgi_spans;
