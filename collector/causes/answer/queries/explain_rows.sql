-- The times of requests in causes: of all, or by their keys of one in `every`, and of those that are chosen. A request that was explained
-- again may have several rows, of which the highest version counts: FINAL takes 23 ms for these columns, whether it finds a row or none.
-- no rows without: causes
SELECT
    toUnixTimestamp64Nano(end), request_key, cityHash64(engine, service, instance, process_tenant), weight,
    if(output_tokens IS NULL, nan, toFloat64(greatest(assumeNotNull(output_tokens), 1) - 1)), tpot_more_us, $parts.error_share,
    toUInt8(level), toUInt8(first_token), toUInt8(tpot_is_bound), toUInt8(status = 'ok'), $times, cityHash64(model),
    toUInt64($cell), version, toUInt8(reason), toFloat32(ifNull(reason_share, nan)),
    toFloat32(ifNull(reason_steps, nan))
FROM causes
WHERE $parts.ended_in_window AND $filter AND (request_key % {every:UInt32} = 0 OR $chosen)
