-- Calls of a language model by OpenInference (Arize, Phoenix). Its other kinds of spans (CHAIN, TOOL, EMBEDDING, …) are left. So are
-- spans of streams that end when their stream begins: the time until the last token is not known. LlamaIndex's all do, and the
-- openai client's in `with_raw_response`, as OpenAI's agents call it. Of LlamaIndex, other methods than chat and complete call these, or prepare them. Embeddings
-- by Bedrock's client have the kind LLM. Its processor for Pydantic AI adds its words to spans that say more in their own.
WHEN text['openinference.span.kind'] = 'LLM' AND scope != 'pydantic-ai'
    AND NOT (scope = 'openinference.instrumentation.llama_index' AND NOT match(span.name, '\\.a?(chat|complete)$$'))
    AND NOT (scope = 'openinference.instrumentation.bedrock' AND position(text['llm.model_name'], 'embed') > 0)
    AND NOT (scope = 'openinference.instrumentation.openai' AND span.status.code = 1 AND text['output.mime_type'] = ''
        AND empty(span.events.name) AND JSONExtractBool(text['llm.invocation_parameters'], 'stream'))
    THEN 'openinference.request'
