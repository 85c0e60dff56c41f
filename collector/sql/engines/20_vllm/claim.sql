-- vLLM's spans: requests, and the functions of its start-up. Other spans of its scopes are left to `spans`.
WHEN startsWith(scope, 'vllm.') THEN CASE
    WHEN span.name = 'llm_request' THEN 'vllm.request'
    WHEN span.kind = 1 AND has(span.attributes.key, 'code.function') THEN 'vllm.cold_start'
    ELSE ''
END
