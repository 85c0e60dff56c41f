-- A text generation of any instrumentation that follows OpenTelemetry's GenAI conventions. Engines claim before it. Embeddings
-- generate no token: they stay in `spans`. Two instrumentations of AWS's client call those of Bedrock completions or chats.
WHEN text['gen_ai.operation.name'] IN ('chat', 'text_completion', 'generate_content')
    AND NOT (scope IN ('opentelemetry.instrumentation.botocore.bedrock-runtime', 'opentelemetry.instrumentation.bedrock')
        AND position(text['gen_ai.request.model'], 'embed') > 0)
    THEN 'genai.request'
