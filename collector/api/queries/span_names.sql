-- The names of the spans that no engine's mapping claims, the most frequent first, with the keys of their attributes.
SELECT
    service, scope, name,
    count() AS spans,
    arraySort(groupUniqArrayArray(200)(CAST(mapKeys(attributes), 'Array(String)'))) AS attribute_keys
FROM spans
WHERE $parts.started_in_window AND $filter
GROUP BY service, scope, name
ORDER BY spans DESC, service, scope, name
LIMIT {limit:UInt32}
$parts.largest_page
