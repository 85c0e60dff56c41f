-- Requests that were announced and had not ended at `end_ns`, and those of them that were lost since `start_ns`: not
-- announced again for `lost_after_ns`. What is known of one is what its latest announcement said, so `elapsed_ns` ends with
-- that. `no_progress`: its engine ran no step for `lost_after_ns`.
SELECT
    trace_id, span_id, request_id, engine, service, instance, variant, operation, model, tenant, slo_class,
    input_tokens, output_tokens, ttft_ns, start, seen,
    toUInt64(greatest(toUnixTimestamp64Nano(least(seen, at)) - toUnixTimestamp64Nano(start), 0)) AS elapsed_ns,
    toUnixTimestamp64Nano(seen) + {lost_after_ns:Int64} AS lost_at_ns,
    ended.end = 0 AND lost_at_ns < {end_ns:Int64} AS is_lost,
    stepped.last_step > 0 AND toUnixTimestamp64Nano(least(seen, at))
        - toUnixTimestamp64Nano(greatest(stepped.last_step, start)) > {lost_after_ns:Int64} AS no_progress,
    toUnixTimestamp64Nano(stepped.last_step) AS last_step_ns,
    fromUnixTimestamp64Nano({end_ns:Int64}, 'UTC') AS at
FROM
(
    SELECT *
    FROM open_requests
    WHERE seen >= fromUnixTimestamp64Nano({start_ns:Int64} - {lost_after_ns:Int64})
      AND start <= fromUnixTimestamp64Nano({end_ns:Int64})
      AND $filter
    ORDER BY seen DESC
    LIMIT 1 BY trace_id, span_id
) AS open
LEFT JOIN
(
    SELECT trace_id, span_id, max(end) AS end
    FROM requests
    WHERE requests.end > fromUnixTimestamp64Nano({start_ns:Int64} - {lost_after_ns:Int64}) - INTERVAL 1 MINUTE
      AND (trace_id, span_id) IN
      (
          SELECT trace_id, span_id FROM open_requests
          WHERE seen >= fromUnixTimestamp64Nano({start_ns:Int64} - {lost_after_ns:Int64})
      )
    GROUP BY trace_id, span_id
) AS ended USING (trace_id, span_id)
LEFT JOIN
(
    SELECT service, instance, max(start) AS last_step
    FROM steps
    WHERE steps.start <= fromUnixTimestamp64Nano({end_ns:Int64})
      AND steps.start > fromUnixTimestamp64Nano({end_ns:Int64}) - INTERVAL 1 DAY
    GROUP BY service, instance
) AS stepped USING (service, instance)
WHERE ended.end = 0 OR ended.end > at
