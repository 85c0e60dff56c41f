-- The share of the prompt that the prefix cache had; NULL: not known, or no prompt.
if(input_tokens > 0, cached_tokens / input_tokens, NULL)
