-- LiteLLM: its call of the model (v1 `litellm_request`, v2 `chat MODEL`), and a request that its proxy refused before there was a
-- call (v2). From 1.110 on, v1 says `chat` of what it called `completion` before. Its other spans are left, so that one request is one row.
-- An answer that its cache gave has a span, too: in v1 with the cache's key, which others lack, and in v2 from 1.110 on.
WHEN scope = 'litellm' AND (number['litellm.cache_hit'] = 1 OR position(text['hidden_params'], '"cache_key": "') > 0) THEN ''
WHEN scope = 'litellm' AND span.name = 'litellm_request'
    AND match(text['gen_ai.operation.name'], '^(chat|a?(completion|text_completion|responses|anthropic_messages|generate_content(_stream)?))$$')
    THEN 'litellm.request'
WHEN scope = 'litellm' AND span.kind = 3
    AND text['gen_ai.operation.name'] IN ('chat', 'text_completion', 'generate_content') THEN 'litellm.request'
WHEN scope = 'opentelemetry.instrumentation.fastapi' AND span.kind = 2 AND text['litellm.call_id'] != '' AND text['error.type'] != ''
    AND match(text['http.route'], '/(completions|responses|messages)$$')
    AND NOT has(span.events.name, 'litellm.request.deployment_selected') THEN 'litellm.refused'
