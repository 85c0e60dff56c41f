-- A text generation of any instrumentation that follows OpenTelemetry's GenAI conventions. Engines claim before it. Embeddings
-- generate no token: they stay in `spans`. Two instrumentations of AWS's client call those of Bedrock completions or chats.
-- So does the span of a stream that has no sign of the stream's end: it may have ended with the headers of the answer. A sign is an error, a finish
-- reason, output, output tokens, or the time of a chunk. Logfire sends a log for each stream's end, and does not say which of its spans are of
-- streams. The four scopes end a stream's span with the stream, and say nothing more of one that was abandoned.
WHEN text['gen_ai.operation.name'] IN ('chat', 'text_completion', 'generate_content')
    AND NOT (scope IN ('opentelemetry.instrumentation.botocore.bedrock-runtime', 'opentelemetry.instrumentation.bedrock')
        AND position(text['gen_ai.request.model'], 'embed') > 0)
    AND multiIf(
        startsWith(scope, 'logfire.') AND text['logfire.span_type'] = 'log', number['duration'] > 0,
        startsWith(scope, 'logfire.') OR number['gen_ai.request.stream'] = 1 OR text['gen_ai.request.stream'] = 'true',
            scope IN ('opentelemetry.instrumentation.genai.openai', 'opentelemetry.instrumentation.genai.anthropic', 'com.anthropic.sdk.python',
                'opentelemetry.instrumentation.google_genai')
            OR span.status.code = 2 OR number['gen_ai.usage.output_tokens'] > 0 OR number['gen_ai.usage.completion_tokens'] > 0
            OR hasAny(span.attributes.key, ['error.type', 'gen_ai.output.messages', 'response_data', 'gen_ai.response.time_to_first_chunk',
                'gen_ai.client.operation.time_to_first_chunk', 'gen_ai.server.time_to_first_token', 'gen_ai.response.finish_reason'])
            OR text['gen_ai.response.finish_reasons'] NOT IN ('', '[]', '[""]', 'null', 'None')
            OR span.attributes.value.array_value.values.string_value[indexOf(span.attributes.key, 'gen_ai.response.finish_reasons')][1] NOT IN ('', 'null', 'None'),
        true)
    THEN 'genai.request'
