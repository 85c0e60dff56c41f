-- The requests of each engine process with its names, and how many of those that ended ok say a thing. `examples` are a few of those that
-- have more than one token, or an unknown number of them. A process of many tenants may have sixty models: a row for each would be much to keep.
SELECT
    $parts.process, engine, vantage,
    argMax(variant, end) AS variant_now, $parts.names_of_processes,
    toUnixTimestamp64Nano(min(start)) AS first_ns, toUnixTimestamp64Nano(max(end)) AS last_ns, sum(weight) AS n,
    count() AS requests,
    countIf(status = 'ok') AS could_tell,
    countIf(status = 'ok' AND output_tokens IS NOT NULL) AS tokens,
    countIf(status = 'ok' AND prefill_ns IS NOT NULL) AS phases,
    countIf(status = 'ok' AND queue_ns IS NOT NULL) AS queue,
    countIf(status = 'ok' AND preemptions IS NOT NULL) AS preemption,
    arrayMap(
        one -> (lower(hex(one.1)), lower(hex(one.2)), one.3, toUnixTimestamp64Nano(one.4), toUnixTimestamp64Nano(one.5)),
        groupArrayLastIf(20)((trace_id, span_id, $parts.tenant_hash, start, end), status = 'ok' AND ifNull(output_tokens > 1, true))) AS examples
FROM requests
WHERE $ended AND $filter
GROUP BY $parts.process, engine, vantage
