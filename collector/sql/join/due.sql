-- The segments whose requests have waited long enough, the oldest first.
SELECT segment, toUnixTimestamp(min(arrived)) AS first_s, toUnixTimestamp(max(arrived)) AS last_s
FROM held_requests
WHERE arrived >= toDateTime({since_s:UInt32}, 'UTC') AND arrived <= now('UTC') - toIntervalMillisecond({after_ms:UInt32})
  AND segment NOT IN (SELECT segment FROM joined_segments WHERE joined_at >= toDateTime({since_s:UInt32}, 'UTC'))
GROUP BY segment
ORDER BY first_s, segment
LIMIT 100
