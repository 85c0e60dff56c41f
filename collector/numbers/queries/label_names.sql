-- The names of the labels that most requests carry.
SELECT arrayJoin(mapKeys(labels)) AS name
FROM requests
WHERE $parts.ended_in_window AND $filter
GROUP BY name
ORDER BY count() DESC, name
LIMIT {most:UInt32}
