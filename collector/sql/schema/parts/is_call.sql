-- No span around calls, or before one: a chain, an agent, a template, as LangSmith, Traceloop and OpenInference mark them.
text['langsmith.span.kind'] IN ('', 'llm') AND text['openinference.span.kind'] IN ('', 'LLM')
    AND text['traceloop.span.kind'] NOT IN ('workflow', 'agent', 'task', 'tool')
