-- A text generation of any instrumentation that follows OpenTelemetry's GenAI conventions. Engines claim before it. Embeddings
-- generate no token: they stay in `spans`.
WHEN text['gen_ai.operation.name'] IN ('chat', 'text_completion', 'generate_content') THEN 'genai.request'
