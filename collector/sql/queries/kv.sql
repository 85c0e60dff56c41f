SELECT
    service, instance,
    argMax(variant, start) AS variant_now,
    toUnixTimestamp64Nano(max(start)) AS seen_ns,
    argMax(kv_blocks_used, start) AS blocks_used,
    argMax(kv_blocks_total, start) AS blocks_total,
    argMax(running, start) AS running_now,
    argMax(waiting, start) AS waiting_now
FROM steps
WHERE start >= fromUnixTimestamp64Nano({start_ns:Int64}) AND start < fromUnixTimestamp64Nano({end_ns:Int64})
  AND $of_engines
GROUP BY service, instance
ORDER BY service, instance
