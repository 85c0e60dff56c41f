-- The requests that ran at engine processes while others waited, as an array of numbers: one in `every`, from when each had a place until its end.
-- Where nobody tells how long one was queued, from its first token, when it surely had a place; without one, it had none that is known.
SELECT
    cityHash64(engine, service, instance, process_tenant) AS process, toUInt32($parts.request_key) AS key, cityHash64(tenant), toUnixTimestamp64Nano(start) AS start_ns,
    toUnixTimestamp64Nano(start) + toInt64(least(coalesce(queue_ns, ttft_ns, e2e_ns), e2e_ns)), toUnixTimestamp64Nano(end) AS end_ns, weight,
    toFloat64(ifNull(input_tokens, 0)) + ifNull(output_tokens, 0)
FROM requests
WHERE $ran AND $filter AND vantage = 'server' AND key % {every:UInt32} = 0
