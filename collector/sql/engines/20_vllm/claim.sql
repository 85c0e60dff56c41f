-- vLLM's spans: requests, and the functions of its start-up. Other spans of its scopes are left to `spans`. The prefill and the decode
-- engine of a disaggregated request send a span each, which become one request.
WHEN startsWith(scope, 'vllm.') THEN CASE
    WHEN span.name = 'llm_request' THEN CASE resource['tokentrail.disaggregation']
        WHEN 'prefill' THEN 'vllm_disaggregated.prefill'
        WHEN 'decode' THEN 'vllm_disaggregated.request'
        ELSE 'vllm.request'
    END
    WHEN span.kind = 1 AND has(span.attributes.key, 'code.function') THEN 'vllm.cold_start'
    ELSE ''
END
