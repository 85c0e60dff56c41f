-- The days before a time on which requests of a tenant ended, with the day on which the first of them started.
SELECT toYYYYMMDD(end) AS day, toYYYYMMDD(min(start)) AS first_day, count() AS requests
FROM requests
WHERE tenant = {tenant:String} AND end < fromUnixTimestamp({before_s:Int64})
GROUP BY day
ORDER BY day
