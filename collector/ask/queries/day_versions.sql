-- The version of each day (collector.ask.past_days). An insert raises the last block, and a deletion the last mutation, which is the
-- fifth number in a part's name. A merge changes neither.
SELECT
    table AS name, partition_id AS partition,
    [
        min(min_block_number), max(max_block_number), toInt64(sum(rows)),
        max(toInt64OrZero(splitByChar('_', parts.name)[5]))
    ] AS version
FROM system.parts AS parts
WHERE active AND database = currentDatabase() AND table IN
    ('requests', 'tokens', 'steps', 'phases', 'kv_events', 'cold_starts', 'open_requests', 'samples', 'causes')
GROUP BY table, partition_id
