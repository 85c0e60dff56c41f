-- TensorRT-LLM's spans, and those of its proxy for disaggregated servers. vLLM's span of the same name is claimed before.
WHEN span.name = 'llm_request' AND mapContains(number, 'gen_ai.latency.time_in_queue') THEN 'tensorrt_llm.held.server.request'
WHEN span.name = 'disaggregated_request' THEN 'tensorrt_llm.held.proxy.request'
