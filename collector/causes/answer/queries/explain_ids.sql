-- The requests of some keys of `causes`: a key names one together with its end.
SELECT
    toUInt32($parts.request_key) AS key, toUnixTimestamp64Nano(end) AS end_ns, lower(hex(trace_id)) AS trace_id_hex,
    lower(hex(span_id)) AS span_id_hex, tenant, model, input_tokens
FROM requests
WHERE end IN (SELECT fromUnixTimestamp64Nano(arrayJoin({ends:Array(Int64)}))) AND key IN {keys:Array(UInt32)} AND $filter
