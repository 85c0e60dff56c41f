-- Engine processes with any sign of life in the window: a request, an announcement, a step, a cold start.
SELECT
    service, instance,
    anyIf(kind, kind != '') AS engine,
    anyIf(at, at != '') AS vantage,
    argMax(label, last) AS variant,
    arraySort(groupUniqArrayIf(100)(name, name != '')) AS models,
    toUnixTimestamp64Nano(min(first)) AS first_seen_ns,
    toUnixTimestamp64Nano(max(last)) AS last_seen_ns,
    toUInt64(round(sum(n))) AS requests
FROM
(
    SELECT service, instance, engine AS kind, vantage AS at, variant AS label, model AS name, min(start) AS first, max(end) AS last, sum(weight) AS n
    FROM requests
    WHERE $parts.ended_in_window AND $filter
    GROUP BY ALL
    UNION ALL
    SELECT service, instance, engine, vantage, variant, model, min(start), max(seen), 0
    FROM open_requests
    WHERE seen >= fromUnixTimestamp64Nano({start_ns:Int64}) AND seen < fromUnixTimestamp64Nano({end_ns:Int64}) AND $filter
    GROUP BY ALL
    UNION ALL
    SELECT service, instance, engine, '', variant, model, min(start), max(start + toIntervalNanosecond(duration_ns)), 0
    FROM cold_starts
    WHERE $parts.started_in_window AND $process_filter
    GROUP BY ALL
    UNION ALL
    SELECT service, instance, '', '', variant, '', min(start), max(start), 0
    FROM steps
    WHERE $parts.started_in_window AND $process_filter
    GROUP BY ALL
)
GROUP BY service, instance
ORDER BY last_seen_ns DESC, service, instance
