-- Generations of Langfuse's SDK. Its other types of observations (span, tool, embedding, …) are left.
WHEN text['langfuse.observation.type'] = 'generation' THEN 'langfuse.request'
