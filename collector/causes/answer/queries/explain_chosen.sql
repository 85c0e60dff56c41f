-- The requests that are to be explained, and what judges them again. `every`: of so many requests one, by its key, where there are too many.
SELECT
    toUnixTimestamp64Nano(end), toUInt32($parts.request_key) AS request_key, toUInt64($cell), weight, cityHash64(model), $parts.known_latencies,
    toUInt8(indexOf(['ok', 'error', 'cancelled', 'unknown'], toString(status))), toUInt8(tpot_at_most_ns IS NOT NULL)
FROM requests
WHERE $parts.ended_in_window AND $filter AND request_key % {every:UInt32} = 0
