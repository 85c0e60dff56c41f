-- The newest law of the step times of each process that judged requests between two moments.
-- no rows without: causes
SELECT
    $parts.process, argMax((start_ns, end_ns, n, r2, sigma), (at, version)) AS newest
FROM step_models
WHERE $filter
  AND ($parts.process, at) IN
  (
    SELECT $parts.process, max(model_at)
    FROM causes
    WHERE end >= fromUnixTimestamp64Nano({first_ns:Int64}) AND end <= fromUnixTimestamp64Nano({last_ns:Int64}) AND $filter
    GROUP BY $parts.process
  )
GROUP BY $parts.process
ORDER BY $parts.process
