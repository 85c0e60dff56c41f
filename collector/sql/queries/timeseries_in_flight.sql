-- Requests that have not ended and are bad. A lost request is in the bucket in which it was given up, a request in flight in the
-- last bucket.
SELECT
    intDiv(if(is_lost, lost_at_ns, {end_ns:Int64} - 1), {step_ns:Int64}) * {step_ns:Int64} AS bucket_ns,
    countIf(NOT is_lost) AS in_flight_violations,
    countIf(is_lost) AS lost
FROM ($parts.in_flight)
WHERE is_lost OR $bad_already
GROUP BY bucket_ns
