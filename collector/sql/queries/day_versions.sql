-- The version of each day (collector.sql.past_days). An insert raises the last block, a deletion the last mutation.
SELECT
    table AS name, partition_id AS partition,
    [min(min_block_number), max(max_block_number), toInt64(max(data_version)), toInt64(sum(rows))] AS version
FROM system.parts
WHERE active AND database = currentDatabase() AND table IN ('requests', 'tokens')
GROUP BY table, partition_id
