-- A call of the model by Claude Code. Its spans around it (interaction, tool, hook) are left.
WHEN span.name = 'claude_code.llm_request' OR startsWith(scope, 'com.anthropic.claude_code') AND text['span.type'] = 'llm_request' THEN 'claude.request'
