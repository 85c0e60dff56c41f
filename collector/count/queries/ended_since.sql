-- Requests that had not ended before `end_ns` and have ended since, each by its row, with the columns of announced.sql.
SELECT
    $parts.in_flight_columns, NULL AS last_token_ns, NULL AS gap_ns,
    toUnixTimestamp64Nano(start) AS began_ns, toUnixTimestamp64Nano(end) AS seen_ns, toUnixTimestamp64Nano(end) AS heard_ns,
    $parts.is_unmeasured AS unmeasured
FROM requests
PREWHERE end >= fromUnixTimestamp64Nano({end_ns:Int64}) AND end < fromUnixTimestamp64Nano({end_ns:Int64}) + $parts.end_margin
WHERE start <= fromUnixTimestamp64Nano({end_ns:Int64}) AND $filter
