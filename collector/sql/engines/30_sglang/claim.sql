-- SGLang's spans: a request, and the parts of it that its views read. Other known parts are claimed and not kept. Names have
-- ids in them, so a request is known by its module, and the span of a process by its label. Disaggregated, both servers get the request at
-- once and the decode server answers it, so the prefill server's span is a part. SGLang asks itself for a token when its health is asked
-- for: that is no request.
WHEN startsWith(scope, 'sglang') THEN CASE
    WHEN text['module'] = 'sglang::request' THEN
        if(startsWith(span.name, 'prefill Req ') OR startsWith(text['gen_ai.request.id'], 'HEALTH_CHECK'), 'sglang.part', 'sglang.held.request')
    WHEN text['thread_label'] != '' THEN 'sglang.held.process'
    WHEN span.name = 'prefill_forward' THEN 'sglang.held.prefill'
    WHEN span.name = 'decode_forward' THEN 'sglang.held.decode'
    WHEN span.name = 'decode_loop' THEN 'sglang.held.token'
    WHEN span.name IN ('tokenize', 'api_server_dispatch', 'request_process', 'prefill_waiting', 'chunked_prefill', 'decode_waiting')
        THEN 'sglang.slice'
    ELSE ''
END
