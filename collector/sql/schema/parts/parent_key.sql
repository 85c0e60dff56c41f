-- The parent of a request in the same process: trace, service, instance and span id. A framework's span around the client's is one:
--     ChatOpenAI        span 1                  a wrapper: it is not counted
--       ChatCompletion  span 2, parent 1        the request
-- So a request is a wrapper when its own key is the parent key of another request of the same insert.
trace_id, service, instance, toFixedString(parent_span_id, 8)
