-- Counts by band: the index of the shortest window that holds the request, of ascending `windows` (nanoseconds, all ending at
-- `end_ns`). The count of a window is the sum of its band and of all bands before it.
SELECT
    arrayFirstIndex(w -> toUnixTimestamp64Nano(end) >= {end_ns:Int64} - w, {windows:Array(Int64)}) AS band,
    count() AS total,
    countIf(status = 'ok') AS ok,
    countIf($good) AS good,
    countIf($parts.is_undetermined) AS undetermined,
    countIf(status = 'error') AS failed,
    countIf(status = 'cancelled') AS cancelled
FROM requests
WHERE $parts.ended_in_window AND $filter
GROUP BY band
