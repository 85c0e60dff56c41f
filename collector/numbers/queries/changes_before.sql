-- Which of some values a service had before a moment, and its variants.
SELECT DISTINCT service, kind.1 AS dimension, kind.2 AS value
FROM requests
ARRAY JOIN [(3, toString(model)), (5, toString(variant)), (6, toString(instance))] AS kind
WHERE end < fromUnixTimestamp64Nano({before_ns:Int64}) AND $filter
  AND ((service, dimension, value) IN {asked:Array(Tuple(String, UInt8, String))} OR dimension = 5 AND service IN {services:Array(String)})
