-- The models of the requests of the window, each with its number in explain_chosen, those with most requests first.
SELECT toString(model) AS name, cityHash64(model) AS number
FROM (SELECT model, count() AS n FROM requests WHERE $parts.ended_in_window AND $filter GROUP BY model)
ORDER BY n DESC, name
LIMIT {limit:UInt32}
