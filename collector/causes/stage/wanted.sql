-- The requests of segments: what is copied from them, and what explains them.
SELECT
    segment, $parts.process_key AS process, $parts.request_key AS key,
    toUnixTimestamp64Nano(requests.start) AS start, toUnixTimestamp64Nano(requests.end) AS end,
    toUnixTimestamp64Milli(requests.ingested_at) AS ingested_at,
    engine, service, instance, process_tenant, variant, vantage, operation, model, tenant, slo_class, labels, status, error_type,
    input_tokens, output_tokens, cached_tokens, weight, ttft_us, tpot_us, e2e_us, tpot_at_most_ns IS NOT NULL AS tpot_is_bound,
    gap_us, first_visible_us,
    ttft_ns, wait_batch_ns, wait_kv_ns, wait_tokens_ns, wait_priority_ns
FROM requests
WHERE requests.ingested_at >= toDateTime64({first_s:UInt32}, 3, 'UTC') AND requests.ingested_at < toDateTime64({last_s:UInt32} + 1, 3, 'UTC')
  AND segment IN {segments:Array(String)}
