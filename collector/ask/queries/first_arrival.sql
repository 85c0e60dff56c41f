-- When the first of all requests arrived; 0 without one.
SELECT toUnixTimestamp64Nano(toDateTime64(ifNull(minOrNull(ingested_at), toDateTime64(0, 3, 'UTC')), 9)) AS first_ns FROM requests
