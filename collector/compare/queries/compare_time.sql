-- When the first of the requests began that ended in the window, the end of the last one, and the minutes in which one ended; NULL and
-- none without any.
SELECT
    toUnixTimestamp64Nano(minOrNull(start)) AS first_ns, toUnixTimestamp64Nano(maxOrNull($parts.counts_at)) AS last_ns,
    arraySort(groupUniqArray(intDiv(toUnixTimestamp64Nano($parts.counts_at), 60000000000))) AS minutes
FROM requests
WHERE $parts.ended_in_window AND $filter
