-- tokentrail's own spans: by name, and a request by the SDK's scope.
WHEN span.name IN ('tokentrail.phase', 'tokentrail.step', 'tokentrail.request.open',
                   'tokentrail.kv.evict', 'tokentrail.kv.offload', 'tokentrail.kv.restore') THEN span.name
WHEN startsWith(span.name, 'tokentrail.cold_start') THEN 'tokentrail.cold_start'
WHEN scope = 'tokentrail' AND has(span.attributes.key, 'gen_ai.operation.name') THEN 'tokentrail.request'
