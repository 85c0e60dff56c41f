-- The key by which a span may be a wrapper: one of wrapper_keys.sql.
if(scope IN ('opentelemetry.instrumentation.anthropic', 'openinference.instrumentation.anthropic'),
    (toFixedString('', 16), $process_tenant, service, instance, toFixedString('', 8)), (trace_id, $process_tenant, service, instance, span_id))
