-- Partitions of tables: a day (20261121) or a month (202611).
SELECT table AS name, partition_id AS partition, sum(rows) AS total_rows
FROM $stored_parts
WHERE active AND database = (SELECT currentDatabase()) AND table IN {tables:Array(String)}
GROUP BY name, partition
ORDER BY name, partition
