-- Whose prompts made others wait for the longest time in a window: the tenant with most of it, its longest prompts, and all.
-- no rows without: causes
SELECT of_tenant, us, sum(us) OVER () AS total_us
FROM
(
    SELECT toString(tenant) AS of_tenant, sum(weight * inflicted_us) AS us
    FROM causes FINAL
    WHERE inflicted_us > 0 AND end >= fromUnixTimestamp64Nano({start_ns:Int64}) AND end < fromUnixTimestamp64Nano({end_ns:Int64}) AND $filter
    GROUP BY of_tenant
)
ORDER BY us DESC, of_tenant
LIMIT 1
