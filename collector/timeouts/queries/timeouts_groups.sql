-- The kinds of requests that began and ended in the window, by which timeouts_rows.sql names them.
SELECT model, slo_class, vantage, operation, $parts.process, $parts.timeouts_kind AS kind, count() AS n
FROM requests
WHERE $parts.ended_in_window AND start >= fromUnixTimestamp64Nano({start_ns:Int64}) AND $filter
GROUP BY model, slo_class, vantage, operation, $parts.process
ORDER BY n DESC, kind
