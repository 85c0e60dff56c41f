-- Generations of Langfuse's SDK. Its other types of observations (span, tool, embedding, …) are left. LiteLLM, which can
-- use Langfuse's words, calls embeddings generations too; its text generations are claimed before. A generation that tells neither a model nor
-- a usage, a start of the answer, an end or an error may be a template of a prompt: nothing says that a model was called.
WHEN text['langfuse.observation.type'] = 'generation' AND scope != 'litellm'
    AND (text['langfuse.observation.model.name'] NOT IN ('', '""', 'null') OR text['langfuse.observation.usage_details'] NOT IN ('', '{}', 'null')
        OR text['langfuse.observation.completion_start_time'] NOT IN ('', 'null') OR text['langfuse.observation.metadata.finish_reason'] NOT IN ('', 'null')
        OR text['langfuse.observation.level'] = 'ERROR' OR span.status.code = 2)
    THEN 'langfuse.request'
