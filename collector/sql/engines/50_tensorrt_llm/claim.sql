-- TensorRT-LLM's spans: its own attributes tell them from vLLM's, which have the same name and another scope.
WHEN span.name = 'llm_request' AND mapContains(number, 'gen_ai.latency.kv_cache_transfer_time') THEN 'tensorrt_llm.held.request'
WHEN span.name = 'llm_request' AND NOT startsWith(scope, 'vllm.') AND mapContains(number, 'gen_ai.latency.time_in_queue')
    AND NOT mapContains(number, 'gen_ai.latency.time_in_model_prefill') THEN 'tensorrt_llm.held.request'
WHEN span.name = 'disaggregated_request' THEN 'tensorrt_llm.held.request'
