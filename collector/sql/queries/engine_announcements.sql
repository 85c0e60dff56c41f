-- The announcements of each engine process by its labels. It gave a sign of life in the window if `listed`.
SELECT
    service, instance, engine, vantage, variant, model,
    toUnixTimestamp64Nano(min(start)) AS first_ns, toUnixTimestamp64Nano(max(seen)) AS last_ns, count() AS in_flight,
    seen < fromUnixTimestamp64Nano({end_ns:Int64}) AS listed
FROM open_requests
WHERE seen >= fromUnixTimestamp64Nano({start_ns:Int64})
  AND start < fromUnixTimestamp64Nano({end_ns:Int64}) AND $filter
GROUP BY service, instance, engine, vantage, variant, model, listed
