-- The tenants of these numbers.
SELECT cityHash64(tenant) AS number, toString(any(tenant)) AS name
FROM requests
WHERE $ran AND $filter AND number IN {numbers:Array(UInt64)}
GROUP BY number
