-- The newest law of each engine process of these services, by variant and model, that was learned before a time, of at most a week.
SELECT $parts.process_key AS process, toUnixTimestamp(step_models.at) AS at_s, *
FROM step_models FINAL
WHERE service IN {services:Array(String)} AND version >= {version:UInt32}
  AND step_models.at < toDateTime({before_s:Int64}, 'UTC') AND step_models.at >= toDateTime({before_s:Int64}, 'UTC') - INTERVAL 7 DAY
ORDER BY step_models.at DESC
LIMIT 1 BY process, variant, model
