-- The answer's length in tokens. A failure made its answer short.
if(status = 'ok', output_tokens, NULL)
