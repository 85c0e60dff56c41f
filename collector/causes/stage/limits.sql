-- What engine processes may do at once, and how they admit requests, as they said at their last start before the end of their windows; and when
-- they started since the begin of these.
SELECT
    $parts.process_key AS process, argMax(max_seqs, start) AS max_seqs, argMax(max_batched_tokens, start) AS max_batched_tokens,
    argMax(block_size, start), argMax(kv_blocks, start), argMax(watermark_blocks, start), argMax(chunked_prefill, start), argMax(policy, start),
    groupArrayIf((toUnixTimestamp64Nano(start), toUnixTimestamp64Nano(start) + duration_ns), toUnixTimestamp64Nano(start) + duration_ns > arrayMin({lows_ns:Array(Int64)})) AS starts
FROM cold_starts
WHERE (service, instance) IN {names:Array(Tuple(String, String))} AND phase = ''
  AND start <= fromUnixTimestamp64Nano(arrayMax({highs_ns:Array(Int64)}))
GROUP BY process
