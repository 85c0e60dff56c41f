-- A span around the span of another request of the same process, in one insert. A framework's span around the client's is one:
--     ChatOpenAI        span 1                  a wrapper: it is not counted
--       ChatCompletion  span 2, parent 1        the request
-- A span of kind SERVER below it is the same request at another vantage, and makes no wrapper of it.
has(groupArray(toFixedString(if(kind = 2, '', parent_span_id), 8)) OVER (PARTITION BY trace_id, service, instance), span_id)
