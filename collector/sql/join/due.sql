-- The segments whose requests have waited long enough, the oldest first. The collector's clock may be days ahead of the server's.
WITH least(toDateTime({since_s:UInt32}, 'UTC'), now('UTC') - toIntervalSecond({late_s:UInt32})) AS since
SELECT segment, toUnixTimestamp(min(arrived)) AS first_s, toUnixTimestamp(max(arrived)) AS last_s
FROM held_requests
WHERE arrived >= since AND arrived <= now('UTC') - toIntervalMillisecond({after_ms:UInt32})
  AND segment NOT IN (SELECT segment FROM joined_segments WHERE joined_at >= since)
GROUP BY segment
ORDER BY first_s, segment
LIMIT 100
