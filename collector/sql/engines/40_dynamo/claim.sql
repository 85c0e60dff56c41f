-- Dynamo's spans, known by the module that made them: their scope is the service's name. `http-request` is the request, the others
-- are parts of it; those that no view reads are claimed and not kept. Requests for a model's list or its health are not kept.
WHEN startsWith(text['code.module.name'], 'dynamo_') THEN CASE
    WHEN span.name = 'http-request' THEN
        if(match(text['uri'], '/(completions|responses|messages|embeddings)([?]|$$)'), 'dynamo.held.request', 'dynamo.part')
    WHEN span.name = 'request.lifecycle' THEN 'dynamo.held.lifecycle'
    WHEN span.name = 'response.streaming' THEN 'dynamo.held.streaming'
    WHEN span.name = 'kv_router.route_request' THEN 'dynamo.held.route'
    WHEN span.name IN ('completions', 'completions_single') THEN 'dynamo.held.inner'
    WHEN span.name IN ('handle_payload', 'request.preprocessing') OR startsWith(span.name, 'kv_router.') THEN 'dynamo.part'
    ELSE ''
END
