-- Rows and bytes of the tables. A column's bytes are those of its data, without marks and indexes.
SELECT
    table AS name,
    sum(rows) AS total_rows,
    count() AS parts,
    sum(bytes_on_disk) AS disk_bytes
FROM $stored_parts
WHERE active AND database = (SELECT currentDatabase()) AND table IN {tables:Array(String)}
GROUP BY name
