-- What engine processes may do at once, as they said at their last start before the end of their windows.
SELECT $parts.process_key AS process, argMax(max_seqs, start) AS max_seqs, argMax(max_batched_tokens, start) AS max_batched_tokens
FROM cold_starts
WHERE (service, instance) IN {names:Array(Tuple(String, String))} AND phase = ''
  AND start <= fromUnixTimestamp64Nano(arrayMax({highs_ns:Array(Int64)}))
GROUP BY process
