-- Parts that ClickHouse found damaged and set aside, so their rows are in no answer. On a cluster of every node that answers.
SELECT table AS name, count() AS broken_parts
FROM $detached_parts
WHERE database = (SELECT currentDatabase()) AND table IN {tables:Array(String)} AND startsWith(reason, 'broken')
GROUP BY name
SETTINGS skip_unavailable_shards = 1
