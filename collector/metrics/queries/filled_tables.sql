-- Those of the given tables that have rows.
SELECT DISTINCT table AS name
FROM system.parts
WHERE active AND rows > 0 AND database = currentDatabase() AND table IN {tables:Array(String)}
