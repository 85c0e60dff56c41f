-- Calls of a model by the code of a client, of all makers of such spans. One may lie within the other: `wrapper_keys.sql`.
'genai.request', 'traceloop.request', 'openinference.request', 'langfuse.request', 'ai_sdk.request'
