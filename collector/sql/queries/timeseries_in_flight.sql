-- What attainment counts although it has not ended: a lost request when it was given up, one in flight that is already bad
-- in the last bucket.
SELECT
    intDiv(if(is_lost, lost_at_ns, {end_ns:Int64} - 1), {step_ns:Int64}) * {step_ns:Int64} AS bucket_ns,
    count() AS bad
FROM ($in_flight)
WHERE is_lost OR $bad_already
GROUP BY bucket_ns
