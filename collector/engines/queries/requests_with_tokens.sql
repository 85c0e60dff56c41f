-- Those of the given traces' requests that have single tokens after the first. `minutes` are those in which the requests ran, in unix
-- seconds: few of a month's tokens lie in them. The primary key finds the minutes of a CAST, and not those of a function.
SELECT DISTINCT lower(hex(trace_id)) AS trace_id_hex, lower(hex(request_span_id)) AS span_id_hex, tenant_hash
FROM tokens
WHERE token_index > 0 AND minute IN CAST({minutes:Array(UInt32)}, 'Array(DateTime(\'UTC\'))')
  AND trace_id IN $parts.given_traces
