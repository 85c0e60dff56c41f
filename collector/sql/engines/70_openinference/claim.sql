-- Calls of a language model by OpenInference (Arize, Phoenix). Its other kinds of spans (CHAIN, TOOL, EMBEDDING, …) are left.
WHEN text['openinference.span.kind'] = 'LLM' THEN 'openinference.request'
