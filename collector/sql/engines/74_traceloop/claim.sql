-- Generations of Traceloop's instrumentation of the openai client (OpenLLMetry). Its scope ends in the client's API version.
WHEN startsWith(scope, 'opentelemetry.instrumentation.openai.v')
    AND text['gen_ai.operation.name'] IN ('chat', 'text_completion') AND $is_call THEN 'traceloop.request'
