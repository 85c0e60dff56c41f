-- The times of requests in causes, each with the cell by which SLOs judge it. Of more than about `most`, every second, third, … is read, by its key.
WITH assumeNotNull((SELECT greatest(intDiv(count() + {most:UInt32} - 1, {most:UInt32}), 1) FROM causes WHERE $parts.ended_in_window AND $filter)) AS every
SELECT
    toUnixTimestamp64Nano(end), request_key, cityHash64(engine, service, instance, process_tenant), weight * every,
    toUInt32(if(output_tokens IS NULL, 4294967295, greatest(assumeNotNull(output_tokens), 1) - 1)), tpot_more_us, error_permille,
    toUInt8(level), toUInt8(first_token), toUInt8(tpot_is_bound), toUInt8(status = 'ok'), $times, cityHash64(model),
    toUInt64($cell)
FROM causes FINAL
WHERE $parts.ended_in_window AND $filter AND request_key % every = 0
