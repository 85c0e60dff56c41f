-- The keys of spans that are no requests, because of a call of the same insert: that of its parent in the same process (trace, tenant of
-- the process, service, instance and span id). A framework's span around the client's is one:
--     ChatOpenAI        span 1                  a wrapper: it is not counted
--       ChatCompletion  span 2, parent 1        the request
-- A span of the anthropic client's own has a second key, without ids: that of every span that another instrumentation made of this client
-- (own_key.sql). Those are not its parents, and it has a span of its own for each call.
WITH arrayJoin(if(scope = 'com.anthropic.sdk.python', [false, true], [false])) AS of_process
SELECT if(of_process, toFixedString('', 16), trace_id), $process_tenant, service, instance, if(of_process, toFixedString('', 8), toFixedString(parent_span_id, 8))
