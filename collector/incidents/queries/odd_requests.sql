-- The requests of a slice of time in blocks of ten minutes: of each model by quarters of octaves of their TTFT (255: none), and of
-- each process, with the median time of a token after the first. `grouping_of`: 0 has the models, 1 the processes.
SELECT
    grouping(of_model) AS grouping_of, of_model, service, instance, process_tenant, block, bucket,
    count() AS n, countIf(status = 'cancelled') AS cancelled, countIf(status = 'error') AS failed,
    countIf(tpot_ns IS NOT NULL) AS with_tpot, ifNull(quantileIf(0.5)(tpot_ns, tpot_ns IS NOT NULL), 0) AS tpot_p50_ns
FROM
(
    SELECT
        toString(model) AS of_model, service, instance, process_tenant, status, tpot_ns,
        intDiv(toUnixTimestamp64Nano($parts.counts_at), 600000000000) AS block,
        toUInt8(if(ttft_ns IS NULL, 255, floor(4 * log2(greatest(assumeNotNull(ttft_ns), 1))))) AS bucket
    FROM requests
    WHERE $ended AND $filter
)
GROUP BY GROUPING SETS ((of_model, block, bucket), (service, instance, process_tenant, block))
LIMIT 200000
