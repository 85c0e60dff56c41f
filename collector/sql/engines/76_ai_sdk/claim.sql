-- A call of a model by Vercel's AI SDK: by its names in versions 4 to 6, by the scope of @ai-sdk/otel in version 7. Versions before 7
-- never end the span of a call whose stream was aborted. The span around it ends then, without a finish reason.
WHEN text['ai.operationId'] IN (
        'ai.streamText.doStream', 'ai.generateText.doGenerate', 'ai.streamObject.doStream', 'ai.generateObject.doGenerate')
    OR text['ai.operationId'] = 'ai.streamText' AND span.status.code != 2 AND text['ai.response.finishReason'] = ''
    OR scope = 'gen_ai' AND text['gen_ai.operation.name'] = 'chat' THEN 'ai_sdk.request'
