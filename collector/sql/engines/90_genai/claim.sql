-- A text generation of any instrumentation that follows OpenTelemetry's GenAI conventions. Engines claim before it. Embeddings
-- generate no token: they stay in `spans`. Two instrumentations of AWS's client call those of Bedrock completions or chats.
-- So does the span of a stream that has no sign of the stream's end: it may have ended with the headers of the answer. A sign is an error, a finish
-- reason, output, output tokens, or the time of a chunk. Logfire sends a log for each stream's end, and does not say which of its spans are of
-- streams. The four scopes end a stream's span with the stream, and say nothing more of one that was abandoned.
-- A call has a model: LangSmith and others call templates of prompts and the loops of agents chats too. Traceloop's of OpenAI's agents does not name
-- the model of a response that nobody awaited.
WHEN text['gen_ai.operation.name'] IN ('chat', 'text_completion', 'generate_content')
    AND (text['gen_ai.request.model'] != '' OR text['gen_ai.response.model'] != '' OR scope = 'opentelemetry.instrumentation.openai_agents')
    AND $is_call
    AND NOT (scope IN ('opentelemetry.instrumentation.botocore.bedrock-runtime', 'opentelemetry.instrumentation.bedrock')
        AND position(text['gen_ai.request.model'], 'embed') > 0)
    AND multiIf(
        startsWith(scope, 'logfire.') AND text['logfire.span_type'] = 'log', number['duration'] > 0,
        startsWith(scope, 'logfire.') OR number['gen_ai.request.stream'] = 1 OR text['gen_ai.request.stream'] = 'true',
            scope IN ('opentelemetry.instrumentation.genai.openai', 'opentelemetry.instrumentation.genai.anthropic', 'com.anthropic.sdk.python',
                'opentelemetry.instrumentation.google_genai')
            OR span.status.code = 2 OR arrayExists(key -> number[key] > 0, [$keys_output])
            OR hasAny(span.attributes.key, ['error.type', 'gen_ai.output.messages', 'response_data', 'gen_ai.response.finish_reason', $keys_first_chunk])
            OR text['gen_ai.response.finish_reasons'] NOT IN ('', '[]', '[""]', 'null', 'None')
            OR span.attributes.value.array_value.values.string_value[indexOf(span.attributes.key, 'gen_ai.response.finish_reasons')][1] NOT IN ('', 'null', 'None'),
        true)
    THEN 'genai.request'
