-- Generations of Langfuse's SDK. Its other types of observations (span, tool, embedding, …) are left. LiteLLM, which can
-- use Langfuse's words, calls embeddings generations too; its text generations are claimed before.
WHEN text['langfuse.observation.type'] = 'generation' AND scope != 'litellm' THEN 'langfuse.request'
