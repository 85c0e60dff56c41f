-- Counts by the shortest of the ascending `windows` (nanoseconds, all ending at `end_ns`) that holds the request: the sum
-- of the bands up to a window is that window's count.
SELECT
    arrayFirstIndex(w -> toUnixTimestamp64Nano(end) >= {end_ns:Int64} - w, {windows:Array(Int64)}) AS band,
    count() AS total,
    countIf(status = 'ok') AS ok,
    countIf($good) AS good,
    countIf(status = 'error') AS failed,
    countIf(status = 'cancelled') AS cancelled
FROM requests
WHERE $window AND $filter
GROUP BY band
